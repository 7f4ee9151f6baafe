// config.json of a Hugging Face checkpoint. Whatever would change the arithmetic and is not built
// is refused by name: a key that is ignored would give wrong tokens without a word.
#include "crossdock/model/model_config.h"

#include <algorithm>
#include <set>

#include "json_file.h"
#include "rope_config.h"

namespace crossdock {
namespace {

using Moe = MoeConfig;

constexpr uint32_t kDimensionMax = 1u << 20;
constexpr uint32_t kHeadsMax = 4096;
constexpr uint32_t kExpertsMax = 4096;
constexpr uint32_t kContextMax = 1u << 20;  // what the sine and cosine of RoPE reduce exactly

void read_deepseek_v3(JsonKeys& keys, ModelConfig& config);
void read_deepseek_v2(JsonKeys& keys, ModelConfig& config);
void read_llama(JsonKeys& keys, ModelConfig& config);
void read_qwen2(JsonKeys& keys, ModelConfig& config);
void read_qwen3(JsonKeys& keys, ModelConfig& config);
void read_qwen3_moe(JsonKeys& keys, ModelConfig& config);
void read_mistral(JsonKeys& keys, ModelConfig& config);

struct Architecture {
  const char* name;
  void (*read)(JsonKeys& keys, ModelConfig& config);
};

constexpr Architecture kArchitectures[] = {{"DeepseekV3ForCausalLM", read_deepseek_v3},
                                           {"DeepseekV2ForCausalLM", read_deepseek_v2},
                                           {"LlamaForCausalLM", read_llama},
                                           {"Qwen2ForCausalLM", read_qwen2},
                                           {"Qwen3ForCausalLM", read_qwen3},
                                           {"Qwen3MoeForCausalLM", read_qwen3_moe},
                                           {"MistralForCausalLM", read_mistral}};

Result<const Architecture*> find_architecture(const JsonFile& file) {
  const auto* value = file.find("architectures");
  if (value == nullptr) return file.invalid("architectures", "is missing");
  if (!value->is_array() || value->size() != 1 || !value->front().is_string()) {
    return file.invalid("architectures", "must be a list of one name, not " + value->dump());
  }
  std::string names;
  for (const Architecture& known : kArchitectures) {
    if (value->front() == known.name) return &known;
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return file.unsupported("architectures",
                          value->dump() + " is not supported; these are: " + names);
}

// Keys of which one value alone is built.
void check_fixed_keys(JsonKeys& keys) {
  struct Fixed {
    const char* key;
    nlohmann::json supported;
  };
  const Fixed fixed[] = {{"hidden_act", "silu"},
                         {"attention_bias", false},
                         {"mlp_bias", false},
                         {"rope_interleaved", false},
                         {"partial_rotary_factor", 1.0}};
  const JsonFile& file = keys.file();
  for (const auto& [key, supported] : fixed) {
    keys.support(file.is_absent(key) || *file.find(key) == supported, key,
                 file.is_absent(key) ? ""
                                     : file.find(key)->dump() + " is not supported; only " +
                                           supported.dump() + " is");
  }
  for (const char* key : {"attention_chunk_size", "adapter_config"}) {
    keys.support(file.is_absent(key), key, "is not supported; remove it or set null");
  }
  for (const char* key : {"torch_dtype", "dtype"}) {
    const std::string dtype = keys.text_or(key, "bfloat16");
    keys.support(dtype == "float32" || dtype == "bfloat16" || dtype == "float16", key,
                 "\"" + dtype + "\" is not supported; float32, bfloat16 and float16 are");
  }
}

// FP8 in blocks, as DeepSeek-V3 is published: activations stay as they are here.
void check_quantization(JsonKeys& keys, ModelConfig& config) {
  if (keys.file().is_absent("quantization_config")) return;
  auto object = keys.file().object("quantization_config");
  if (!object.ok()) return keys.take(object.status());
  JsonKeys inner(object.value());
  const std::string method = inner.text_or("quant_method", "");
  inner.support(method == "fp8", "quant_method", "\"" + method + "\" is not supported; fp8 is");
  const std::string format = inner.text_or("fmt", "e4m3");
  inner.support(format == "e4m3", "fmt", "\"" + format + "\" is not supported; e4m3 is");
  const auto* block = object.value().find("weight_block_size");
  inner.support(block != nullptr && *block == nlohmann::json{128, 128}, "weight_block_size",
                "must be [128, 128]; nothing else is supported");
  const std::set<std::string> known = {"quant_method",      "fmt",        "weight_block_size",
                                       "activation_scheme", "dequantize", "modules_to_not_convert"};
  for (const auto& [key, value] : object.value().root().items()) {
    inner.support(known.contains(key), key, "is not supported");
  }
  keys.take(inner.status());
  config.fp8_block_scaled = true;
}

void read_dimensions(JsonKeys& keys, ModelConfig& config) {
  config.num_layers = keys.whole("num_hidden_layers", 1, 4096);
  config.hidden_size = keys.whole("hidden_size", 1, kDimensionMax);
  config.intermediate_size = keys.whole("intermediate_size", 1, kDimensionMax);
  config.num_heads = keys.whole("num_attention_heads", 1, kHeadsMax);
  config.vocab_size = keys.whole("vocab_size", 1, kDimensionMax * 4);
  config.context_tokens_max = keys.whole("max_position_embeddings", 1, kContextMax);
  config.rms_norm_eps = keys.positive("rms_norm_eps");
  config.tie_word_embeddings = keys.boolean_or("tie_word_embeddings", false);
  config.is_moe.assign(config.num_layers, false);
}

// ---- attention ----

// `head_dim` is what an absent key means; 0: hidden_size over the heads.
void read_gqa(JsonKeys& keys, ModelConfig& config, uint32_t head_dim) {
  config.attention = ModelConfig::Attention::kGqa;
  config.num_kv_heads = keys.whole_or("num_key_value_heads", 1, config.num_heads, config.num_heads);
  keys.require(config.num_heads % config.num_kv_heads == 0, "num_key_value_heads",
               "must divide num_attention_heads (" + std::to_string(config.num_heads) + ")");
  if (head_dim == 0 && keys.file().is_absent("head_dim")) {
    keys.require(config.hidden_size % config.num_heads == 0, "num_attention_heads",
                 "must divide hidden_size where head_dim is absent");
    head_dim = config.hidden_size / config.num_heads;
  }
  config.head_dim = keys.whole_or("head_dim", 1, 4096, head_dim);
  keys.support(config.head_dim % 8 == 0, "head_dim",
               std::to_string(config.head_dim) + " is not supported; it must be a multiple of 8");
  config.rope.dim = config.head_dim;
}

// Within a window every layer sees all there is, so a context no longer than it needs no mask.
void bound_by_window(JsonKeys& keys, ModelConfig& config, bool slides, uint32_t absent_window) {
  const auto* value = keys.file().find("sliding_window");
  const bool has_window = slides && (value == nullptr ? absent_window > 0 : !value->is_null());
  if (has_window) {
    const uint32_t window = keys.whole_or("sliding_window", 1, UINT32_MAX, absent_window);
    config.context_tokens_max = std::min(config.context_tokens_max, window);
  }
  if (keys.file().is_absent("layer_types")) return;
  const auto& types = *keys.file().find("layer_types");
  for (const auto& type : types) {
    const bool known = type == "full_attention" || (has_window && type == "sliding_attention");
    keys.support(known, "layer_types", type.dump() + " is not supported");
  }
}

void refuse_window(JsonKeys& keys, ModelConfig& config) {
  keys.support(keys.file().is_absent("sliding_window"), "sliding_window",
               "is not supported; remove it or set null");
  bound_by_window(keys, config, false, 0);
}

void read_mla(JsonKeys& keys, ModelConfig& config) {
  config.attention = ModelConfig::Attention::kMla;
  config.num_kv_heads = 1;  // the latent, which all heads share
  MlaConfig& mla = config.mla;
  keys.require(keys.file().find("q_lora_rank") != nullptr, "q_lora_rank",
               "is missing; it is a number, or null");
  mla.q_rank = keys.whole_or("q_lora_rank", 1, kDimensionMax, 0);
  mla.latent_rank = keys.whole("kv_lora_rank", 8, 4096);
  mla.nope_dim = keys.whole("qk_nope_head_dim", 1, 4096);
  mla.rope_dim = keys.whole("qk_rope_head_dim", 8, 4096);
  mla.value_dim = keys.whole("v_head_dim", 1, 4096);
  keys.support(mla.latent_rank % 8 == 0, "kv_lora_rank", "must be a multiple of 8");
  keys.support(mla.rope_dim % 8 == 0, "qk_rope_head_dim", "must be a multiple of 8");
  keys.support(
      keys.whole_or("num_key_value_heads", 1, kHeadsMax, config.num_heads) == config.num_heads,
      "num_key_value_heads", "must equal num_attention_heads");
  config.rope.dim = mla.rope_dim;
  refuse_window(keys, config);
}

// ---- mixtures of experts ----

void read_groups(JsonKeys& keys, Moe& moe, uint32_t ranked_experts) {
  moe.num_groups = keys.whole("n_group", 1, moe.num_experts);
  keys.require(moe.num_experts % moe.num_groups == 0, "n_group",
               "must divide n_routed_experts (" + std::to_string(moe.num_experts) + ")");
  moe.num_chosen_groups = keys.whole("topk_group", 1, moe.num_groups);
  const uint32_t group = moe.num_experts / moe.num_groups;
  keys.require(group >= ranked_experts, "n_group",
               "must leave each group " + std::to_string(ranked_experts) + " experts or more");
  keys.require(moe.num_chosen <= moe.num_chosen_groups * group, "num_experts_per_tok",
               "must not exceed the experts of topk_group groups (" +
                   std::to_string(moe.num_chosen_groups * group) + ")");
}

void read_deepseek_moe(JsonKeys& keys, ModelConfig& config) {
  Moe& moe = config.moe;
  moe.num_experts = keys.whole("n_routed_experts", 1, kExpertsMax);
  moe.num_chosen = keys.whole("num_experts_per_tok", 1, moe.num_experts);
  moe.intermediate_size = keys.whole("moe_intermediate_size", 1, kDimensionMax);
  const uint32_t shared = keys.whole_or("n_shared_experts", 0, kExpertsMax, 0);
  keys.require(shared <= kDimensionMax / moe.intermediate_size, "n_shared_experts", "is too large");
  moe.shared_intermediate_size = shared * moe.intermediate_size;
  moe.scale = keys.positive_or("routed_scaling_factor", 1.0f);
  const uint32_t num_dense = keys.whole("first_k_dense_replace", 0, kDimensionMax);
  const uint32_t every = keys.whole_or("moe_layer_freq", 1, kDimensionMax, 1);
  for (uint32_t layer = num_dense; layer < config.num_layers; ++layer) {
    config.is_moe[layer] = layer % every == 0;
  }
}

void read_deepseek_v3(JsonKeys& keys, ModelConfig& config) {
  read_mla(keys, config);
  read_deepseek_moe(keys, config);
  config.rope.interleaved = keys.boolean_or("rope_interleave", true);
  Moe& moe = config.moe;
  const std::string scoring = keys.text_or("scoring_func", "sigmoid");
  keys.support(scoring == "sigmoid", "scoring_func",
               "\"" + scoring + "\" is not supported for DeepSeek-V3; sigmoid is");
  const std::string method = keys.text_or("topk_method", "noaux_tc");
  keys.support(method == "noaux_tc", "topk_method",
               "\"" + method + "\" is not supported for DeepSeek-V3; noaux_tc is");
  moe.scoring = Moe::Scoring::kSigmoid;
  moe.selection = Moe::Selection::kGroupTopTwo;
  moe.normalise = keys.boolean_or("norm_topk_prob", true);
  read_groups(keys, moe, 2);
}

void read_deepseek_v2(JsonKeys& keys, ModelConfig& config) {
  read_mla(keys, config);
  read_deepseek_moe(keys, config);
  config.rope.interleaved = true;
  Moe& moe = config.moe;
  const std::string scoring = keys.text_or("scoring_func", "softmax");
  keys.support(scoring == "softmax", "scoring_func",
               "\"" + scoring + "\" is not supported for DeepSeek-V2; softmax is");
  const std::string method = keys.text_or("topk_method", "greedy");
  keys.support(
      method == "greedy" || method == "group_limited_greedy", "topk_method",
      "\"" + method + "\" is not supported for DeepSeek-V2; greedy and group_limited_greedy are");
  // transformers' class for V2 takes no notice of it; DeepSeek's own code normalises, and then
  // leaves routed_scaling_factor out.
  keys.support(!keys.boolean_or("norm_topk_prob", false), "norm_topk_prob",
               "true is not supported for DeepSeek-V2: transformers ignores it and DeepSeek's code "
               "does not, so the weights of its experts are not defined; set false");
  if (method == "group_limited_greedy") {
    moe.selection = Moe::Selection::kGroupMax;
    read_groups(keys, moe, 1);
  }
}

// ---- grouped-query attention ----

void read_llama(JsonKeys& keys, ModelConfig& config) {
  read_gqa(keys, config, 0);
  refuse_window(keys, config);
  keys.support(keys.file().is_absent("num_local_experts"), "num_local_experts",
               "is not supported; remove it or set null");
}

void read_qwen2(JsonKeys& keys, ModelConfig& config) {
  read_gqa(keys, config, 0);
  config.qkv_bias = true;
  bound_by_window(keys, config, keys.boolean_or("use_sliding_window", false), 4096);
}

void read_qwen3(JsonKeys& keys, ModelConfig& config) {
  read_gqa(keys, config, 128);
  config.qk_norm = true;
  bound_by_window(keys, config, keys.boolean_or("use_sliding_window", false), 4096);
}

void read_qwen3_moe(JsonKeys& keys, ModelConfig& config) {
  read_gqa(keys, config, 0);
  config.qk_norm = true;
  bound_by_window(keys, config, keys.boolean_or("use_sliding_window", false), 4096);
  Moe& moe = config.moe;
  // The newer spelling is num_local_experts.
  const bool older = !keys.file().is_absent("num_experts");
  moe.num_experts = keys.whole(older ? "num_experts" : "num_local_experts", 1, kExpertsMax);
  moe.num_chosen = keys.whole("num_experts_per_tok", 1, moe.num_experts);
  moe.intermediate_size = keys.whole("moe_intermediate_size", 1, kDimensionMax);
  moe.normalise = keys.boolean_or("norm_topk_prob", false);
  const uint32_t step = keys.whole_or("decoder_sparse_step", 1, kDimensionMax, 1);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    config.is_moe[layer] = (layer + 1) % step == 0;
  }
  if (keys.file().is_absent("mlp_only_layers")) return;
  const auto& dense = *keys.file().find("mlp_only_layers");
  keys.require(dense.is_array(), "mlp_only_layers", "must be a list, not " + dense.dump());
  for (const auto& layer : dense) {
    const bool valid = layer.is_number_unsigned() && layer.get<uint64_t>() < config.num_layers;
    keys.require(valid, "mlp_only_layers", "must hold layers of the model, not " + layer.dump());
    if (valid) config.is_moe[layer.get<uint32_t>()] = false;
  }
}

void read_mistral(JsonKeys& keys, ModelConfig& config) {
  read_gqa(keys, config, 0);
  bound_by_window(keys, config, true, 4096);
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
  auto architecture = find_architecture(file);
  if (!architecture.ok()) return architecture.status();
  ModelConfig config;
  config.architecture = architecture.value()->name;
  JsonKeys keys(file);
  check_fixed_keys(keys);
  check_quantization(keys, config);
  read_dimensions(keys, config);
  if (!keys.status().ok()) return keys.status();
  const uint32_t trained_context_tokens = config.context_tokens_max;
  architecture.value()->read(keys, config);
  if (!keys.status().ok()) return keys.status();
  if (Status status = read_rope(file, trained_context_tokens, config.rope); !status.ok()) {
    return status;
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
