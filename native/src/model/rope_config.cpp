#include "rope_config.h"

#include <set>
#include <utility>

namespace crossdock {
namespace {

using Scaling = RopeConfig::Scaling;

constexpr uint32_t kOriginalContextMax = 1u << 24;

struct Kind {
  const char* name;
  Scaling scaling;
  std::set<std::string> keys;  // beside those that every kind has
};

const Kind* find_kind(const std::string& name) {
  static const Kind kinds[] = {
      {"default", Scaling::kNone, {}},
      {"linear", Scaling::kLinear, {"factor"}},
      {"llama3",
       Scaling::kLlama3,
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
      {"yarn",
       Scaling::kYarn,
       {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate"}}};
  for (const Kind& kind : kinds) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

Status check_keys(const JsonFile& scaling, const Kind& kind) {
  const std::set<std::string> common = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  for (const auto& [key, value] : scaling.root().items()) {
    if (common.contains(key) || kind.keys.contains(key)) continue;
    return scaling.unsupported(key, std::string("is not supported for RoPE of type ") + kind.name);
  }
  if (!scaling.is_absent("partial_rotary_factor") && *scaling.find("partial_rotary_factor") != 1.0)
    return scaling.unsupported("partial_rotary_factor", "is not supported; only 1.0 is");
  return {};
}

// The newer spelling may hold one object for each kind of layer: they must agree.
Result<JsonFile> one_for_all_layers(const JsonFile& scaling) {
  if (scaling.find("full_attention") == nullptr) return scaling;
  for (const auto& [key, value] : scaling.root().items()) {
    if (value == *scaling.find("full_attention")) continue;
    return scaling.unsupported(key, "differs from full_attention, which is not supported");
  }
  return scaling.object("full_attention");
}

// Zero is what an absent key means here.
float factor_or_zero(JsonKeys& keys, const char* key) {
  if (keys.file().is_absent(key) || *keys.file().find(key) == 0) return 0.0f;
  return keys.positive(key);
}

Status read_scaling(const JsonFile& file, const JsonFile& scaling, uint32_t context_tokens,
                    RopeConfig& rope) {
  JsonKeys keys(scaling);
  const std::string type = keys.text_or("rope_type", keys.text_or("type", "default").c_str());
  const Kind* kind = find_kind(type);
  keys.support(kind != nullptr, "rope_type",
               "\"" + type + "\" is not supported; default, linear, llama3 and yarn are");
  if (!keys.status().ok()) return keys.status();
  keys.take(check_keys(scaling, *kind));
  rope.scaling = kind->scaling;
  rope.theta = keys.positive_or("rope_theta", rope.theta);
  if (rope.scaling == Scaling::kNone) return keys.status();

  // Where the file has the original context beside the scaling, that one counts.
  const bool beside = !file.is_absent("original_max_position_embeddings");
  JsonKeys root(file);
  rope.original_context_tokens =
      (beside ? root : keys)
          .whole_or("original_max_position_embeddings", 1, kOriginalContextMax, context_tokens);
  keys.take(root.status());
  const float ratio =
      static_cast<float>(context_tokens) / static_cast<float>(rope.original_context_tokens);
  rope.factor =
      rope.scaling == Scaling::kYarn ? keys.positive_or("factor", ratio) : keys.positive("factor");
  if (rope.scaling == Scaling::kLlama3) {
    rope.low_frequency_factor = keys.positive("low_freq_factor");
    rope.high_frequency_factor = keys.positive("high_freq_factor");
    keys.require(!keys.status().ok() || rope.high_frequency_factor > rope.low_frequency_factor,
                 "high_freq_factor", "must be above low_freq_factor");
  }
  if (rope.scaling == Scaling::kYarn) {
    rope.beta_fast = keys.positive_or("beta_fast", rope.beta_fast);
    rope.beta_slow = keys.positive_or("beta_slow", rope.beta_slow);
    keys.require(rope.beta_fast >= rope.beta_slow, "beta_fast", "must not be below beta_slow");
    keys.require(rope.theta > 1.0f, "rope_theta", "must be above 1 for YaRN");
    rope.mscale = factor_or_zero(keys, "mscale");
    rope.mscale_all_dim = factor_or_zero(keys, "mscale_all_dim");
    rope.attention_factor = factor_or_zero(keys, "attention_factor");
    rope.truncate = keys.boolean_or("truncate", true);
  }
  return keys.status();
}

}  // namespace

Status read_rope(const JsonFile& file, uint32_t context_tokens, RopeConfig& rope) {
  JsonKeys keys(file);
  rope.theta = keys.positive_or("rope_theta", rope.theta);
  if (!keys.status().ok()) return keys.status();
  const bool older = !file.is_absent("rope_scaling"), newer = !file.is_absent("rope_parameters");
  if (older && newer && *file.find("rope_scaling") != *file.find("rope_parameters")) {
    return file.invalid("rope_scaling", "differs from rope_parameters; keep the one that is meant");
  }
  if (!older && !newer) return {};
  auto scaling = file.object(older ? "rope_scaling" : "rope_parameters");
  if (!scaling.ok()) return scaling.status();
  auto flat = one_for_all_layers(scaling.value());
  if (!flat.ok()) return flat.status();
  return read_scaling(file, flat.value(), context_tokens, rope);
}

}  // namespace crossdock
