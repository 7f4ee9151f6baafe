// config.json of a Hugging Face checkpoint. Whatever would change the arithmetic and is not built
// is refused by name: a key that is ignored would give wrong tokens without a word.
#include <algorithm>

#include "crossdock/model/executor.h"
#include "json_file.h"

namespace crossdock {
namespace {

constexpr uint32_t kDimensionMax = 1u << 20;
constexpr uint32_t kContextMax = 1u << 20;  // what the sine and cosine of RoPE reduce exactly

Status check_architecture(const JsonFile& file) {
  const auto* value = file.find("architectures");
  if (value == nullptr) return file.invalid("architectures", "is missing");
  if (!value->is_array() || value->size() != 1 || !value->front().is_string()) {
    return file.invalid("architectures", "must be a list of one name, not " + value->dump());
  }
  if (value->front() != "LlamaForCausalLM") {
    return file.unsupported("architectures",
                            value->dump() + " is not supported; only LlamaForCausalLM is");
  }
  return {};
}

// Keys of which one value alone is built.
Status check_fixed_keys(const JsonFile& file) {
  struct Fixed {
    const char* key;
    nlohmann::json supported;
  };
  const Fixed fixed[] = {{"hidden_act", "silu"},
                         {"attention_bias", false},
                         {"mlp_bias", false},
                         {"rope_interleaved", false},
                         {"partial_rotary_factor", 1.0}};
  for (const auto& [key, supported] : fixed) {
    if (!file.is_absent(key) && *file.find(key) != supported) {
      return file.unsupported(
          key, file.find(key)->dump() + " is not supported; only " + supported.dump() + " is");
    }
  }
  for (const char* key : {"quantization_config", "sliding_window", "layer_types",
                          "attention_chunk_size", "num_local_experts", "adapter_config"}) {
    if (!file.is_absent(key))
      return file.unsupported(key, "is not supported; remove it or set null");
  }
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (file.is_absent(key)) continue;
    const auto& value = *file.find(key);
    if (value != "float32" && value != "bfloat16") {
      return file.unsupported(key,
                              value.dump() + " is not supported; only float32 and bfloat16 are");
    }
  }
  return {};
}

// rope_scaling (older) and rope_parameters (newer) may only say "default".
Status check_rope(const JsonFile& file) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (file.is_absent(key)) continue;
    const auto& value = *file.find(key);
    if (!value.is_object()) return file.invalid(key, "must be an object, not " + value.dump());
    for (const char* type_key : {"rope_type", "type"}) {
      const auto type = value.find(type_key);
      if (type != value.end() && *type != "default") {
        return file.unsupported(
            key, "of type " + type->dump() + " is not supported; only \"default\" is");
      }
    }
    for (const auto& item : value.items()) {
      const bool known =
          item.key() == "rope_type" || item.key() == "type" || item.key() == "rope_theta";
      if (!known) return file.unsupported(std::string(key) + "." + item.key(), "is not supported");
    }
  }
  return {};
}

Status read_rope_theta(const JsonFile& file, ModelConfig& config) {
  if (!file.is_absent("rope_theta")) {
    auto theta = file.positive("rope_theta");
    if (!theta.ok()) return theta.status();
    config.rope.theta = theta.value();
  }
  if (file.is_absent("rope_parameters")) return {};
  const auto& parameters = *file.find("rope_parameters");
  const auto theta = parameters.find("rope_theta");
  if (theta == parameters.end()) return {};
  if (!theta->is_number() || !(theta->get<float>() > 0.0f)) {
    return file.invalid("rope_parameters.rope_theta", "must be a positive number");
  }
  config.rope.theta = theta->get<float>();
  return {};
}

Status read_dimensions(const JsonFile& file, ModelConfig& config) {
  struct Field {
    const char* key;
    uint32_t max;
    uint32_t* to;
  };
  const Field fields[] = {{"num_hidden_layers", 4096, &config.num_layers},
                          {"hidden_size", kDimensionMax, &config.hidden_size},
                          {"intermediate_size", kDimensionMax, &config.intermediate_size},
                          {"num_attention_heads", 4096, &config.num_heads},
                          {"vocab_size", kDimensionMax * 4, &config.vocab_size},
                          {"max_position_embeddings", kContextMax, &config.context_tokens_max}};
  for (const auto& field : fields) {
    auto value = file.whole(field.key, 1, field.max);
    if (!value.ok()) return value.status();
    *field.to = value.value();
  }
  config.num_kv_heads = config.num_heads;
  if (!file.is_absent("num_key_value_heads")) {
    auto value = file.whole("num_key_value_heads", 1, config.num_heads);
    if (!value.ok()) return value.status();
    config.num_kv_heads = value.value();
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return file.invalid("num_key_value_heads", "must divide num_attention_heads (" +
                                                   std::to_string(config.num_heads) + ")");
  }
  if (!file.is_absent("head_dim")) {
    auto value = file.whole("head_dim", 1, 4096);
    if (!value.ok()) return value.status();
    config.head_dim = value.value();
  } else if (config.hidden_size % config.num_heads != 0) {
    return file.invalid("num_attention_heads", "must divide hidden_size where head_dim is absent");
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 8 != 0) {
    return file.unsupported("head_dim", std::to_string(config.head_dim) +
                                            " is not supported; it must be a multiple of 8");
  }
  return {};
}

// A number, a list of numbers, or null.
Status read_eos(const JsonFile& file, uint32_t vocab_size, std::vector<int32_t>& ids) {
  if (file.is_absent("eos_token_id")) return {};
  const auto& value = *file.find("eos_token_id");
  const auto list = value.is_array() ? value : nlohmann::json::array({value});
  for (const auto& id : list) {
    const bool valid = id.is_number_unsigned() && id.get<uint64_t>() < vocab_size;
    if (!valid) {
      return file.invalid(
          "eos_token_id",
          "must hold ids from 0 to " + std::to_string(vocab_size - 1) + ", not " + id.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return {};
}

}  // namespace

Result<ModelConfig> load_model_config(const std::string& directory) {
  auto read = JsonFile::read(directory + "/config.json");
  if (!read.ok()) return read.status();
  const JsonFile& file = read.value();
  ModelConfig config;
  for (auto check : {check_architecture, check_fixed_keys, check_rope}) {
    if (Status status = check(file); !status.ok()) return status;
  }
  config.architecture = "LlamaForCausalLM";
  if (Status status = read_dimensions(file, config); !status.ok()) return status;
  if (Status status = read_rope_theta(file, config); !status.ok()) return status;
  auto epsilon = file.positive("rms_norm_eps");
  if (!epsilon.ok()) return epsilon.status();
  config.rms_norm_eps = epsilon.value();
  if (!file.is_absent("tie_word_embeddings")) {
    const auto& tied = *file.find("tie_word_embeddings");
    if (!tied.is_boolean()) return file.invalid("tie_word_embeddings", "must be true or false");
    config.tie_word_embeddings = tied.get<bool>();
  }

  auto generation = JsonFile::read(directory + "/generation_config.json");
  if (!generation.ok() && generation.status().code() != StatusCode::kNotFound) {
    return generation.status();
  }
  const bool in_generation = generation.ok() && !generation.value().is_absent("eos_token_id");
  const JsonFile& eos_file = in_generation ? generation.value() : file;
  if (Status status = read_eos(eos_file, config.vocab_size, config.eos_token_ids); !status.ok()) {
    return status;
  }
  return config;
}

}  // namespace crossdock
