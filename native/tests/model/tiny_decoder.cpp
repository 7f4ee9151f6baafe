#include "tiny_decoder.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "crossdock/kernels/math.h"

namespace crossdock::testing {
namespace {

double bf16(double value) {
  return kernels::widen_bf16(kernels::round_bf16(static_cast<float>(value)));
}

TinyTensor draw(std::vector<uint64_t> shape, double center, double spread, bool as_bf16,
                std::mt19937_64& random) {
  TinyTensor tensor{std::move(shape), {}};
  const uint64_t count =
      std::accumulate(tensor.shape.begin(), tensor.shape.end(), uint64_t{1}, std::multiplies<>());
  std::normal_distribution<double> normal(center, spread);
  for (uint64_t i = 0; i < count; ++i) {
    const double value = normal(random);
    tensor.values.push_back(static_cast<float>(as_bf16 ? bf16(value) : value));
  }
  return tensor;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "crossdock-XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TemporaryDirectory::~TemporaryDirectory() { std::filesystem::remove_all(path_); }

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string read_file(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

nlohmann::json tiny_config(const std::string& architecture) {
  nlohmann::json config = {{"architectures", {architecture}},
                           {"hidden_size", 40},
                           {"intermediate_size", 56},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 6},
                           {"num_key_value_heads", 2},
                           {"head_dim", 8},
                           {"vocab_size", 101},
                           {"max_position_embeddings", 2048},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 10000.0},
                           {"tie_word_embeddings", true},
                           {"hidden_act", "silu"},
                           {"eos_token_id", 2}};
  if (architecture.starts_with("Qwen3")) config["head_dim"] = 16;
  if (architecture == "MistralForCausalLM") config["sliding_window"] = nullptr;
  if (architecture == "Qwen3MoeForCausalLM") {
    config.update({{"num_experts", 5},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"norm_topk_prob", true},
                   {"num_hidden_layers", 3},
                   {"mlp_only_layers", {1}}});
  }
  if (!architecture.starts_with("Deepseek")) return config;
  config.erase("head_dim");
  config.update({{"num_key_value_heads", 6},
                 {"tie_word_embeddings", false},
                 {"q_lora_rank", nullptr},
                 {"kv_lora_rank", 128},
                 {"qk_nope_head_dim", 12},
                 {"qk_rope_head_dim", 8},
                 {"v_head_dim", 20},
                 {"n_routed_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"n_shared_experts", 2},
                 {"moe_intermediate_size", 24},
                 {"first_k_dense_replace", 1},
                 {"routed_scaling_factor", 1.5}});
  if (architecture == "DeepseekV2ForCausalLM") {
    config["topk_method"] = "group_limited_greedy";
    return config;
  }
  config.update({{"q_lora_rank", 28},
                 {"norm_topk_prob", true},
                 {"rope_scaling",
                  {{"type", "yarn"},
                   {"factor", 4.0},
                   {"original_max_position_embeddings", 512},
                   {"mscale", 1.0},
                   {"mscale_all_dim", 0.7}}}});
  return config;
}

namespace {

// Draws the tensors of a checkpoint one after the other.
struct Drawer {
  TinyDecoder& model;
  std::mt19937_64 random;
  const nlohmann::json& config = model.config;
  const uint64_t hidden = config["hidden_size"];

  void matrix(const std::string& name, uint64_t outputs, uint64_t depth) {
    model.tensors[name + ".weight"] =
        draw({outputs, depth}, 0.0, 1.2 / std::sqrt(static_cast<double>(depth)),
             model.dtype == "BF16", random);
  }
  void norm(const std::string& name, uint64_t size) {
    model.tensors[name + ".weight"] = draw({size}, 1.0, 0.1, model.dtype == "BF16", random);
  }
  void bias(const std::string& name, uint64_t size) {
    model.tensors[name] = draw({size}, 0.0, 0.2, model.dtype == "BF16", random);
  }

  void gqa(const std::string& prefix) {
    const uint64_t head_dim = config["head_dim"];
    const uint64_t q = config["num_attention_heads"].get<uint64_t>() * head_dim;
    const uint64_t kv = config["num_key_value_heads"].get<uint64_t>() * head_dim;
    const std::pair<const char*, uint64_t> parts[] = {
        {"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
    for (const auto& [name, size] : parts) {
      matrix(prefix + name, size, hidden);
      if (model.architecture() == "Qwen2ForCausalLM") bias(prefix + name + ".bias", size);
    }
    matrix(prefix + "o_proj", hidden, q);
    if (!model.architecture().starts_with("Qwen3")) return;
    norm(prefix + "q_norm", head_dim);
    norm(prefix + "k_norm", head_dim);
  }

  void mla(const std::string& prefix) {
    const uint64_t heads = config["num_attention_heads"], latent = config["kv_lora_rank"];
    const uint64_t nope = config["qk_nope_head_dim"], rope = config["qk_rope_head_dim"];
    const uint64_t value = config["v_head_dim"];
    if (config["q_lora_rank"].is_null()) {
      matrix(prefix + "q_proj", heads * (nope + rope), hidden);
    } else {
      matrix(prefix + "q_a_proj", config["q_lora_rank"], hidden);
      norm(prefix + "q_a_layernorm", config["q_lora_rank"]);
      matrix(prefix + "q_b_proj", heads * (nope + rope), config["q_lora_rank"]);
    }
    matrix(prefix + "kv_a_proj_with_mqa", latent + rope, hidden);
    norm(prefix + "kv_a_layernorm", latent);
    matrix(prefix + "kv_b_proj", heads * (nope + value), latent);
    matrix(prefix + "o_proj", hidden, heads * value);
  }

  void mlp(const std::string& prefix, uint64_t inner) {
    matrix(prefix + "gate_proj", inner, hidden);
    matrix(prefix + "up_proj", inner, hidden);
    matrix(prefix + "down_proj", hidden, inner);
  }

  void moe(const std::string& prefix) {
    const uint64_t num_experts = model.num_experts(), inner = config["moe_intermediate_size"];
    matrix(prefix + "gate", num_experts, hidden);
    if (model.architecture() == "DeepseekV3ForCausalLM") {
      bias(prefix + "gate.e_score_correction_bias", num_experts);
    }
    for (uint64_t expert = 0; expert < num_experts; ++expert) {
      mlp(prefix + "experts." + std::to_string(expert) + ".", inner);
    }
    const uint64_t shared = config.value("n_shared_experts", 0);
    if (shared > 0) mlp(prefix + "shared_experts.", shared * inner);
  }
};

}  // namespace

TinyDecoder TinyDecoder::random(nlohmann::json config, const std::string& dtype, uint64_t seed) {
  TinyDecoder model{std::move(config), dtype, {}};
  Drawer drawer{model, std::mt19937_64(seed)};
  const uint64_t vocab = model.config["vocab_size"];
  drawer.matrix("model.embed_tokens", vocab, drawer.hidden);
  for (uint64_t layer = 0; layer < model.config["num_hidden_layers"]; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    drawer.norm(prefix + "input_layernorm", drawer.hidden);
    drawer.norm(prefix + "post_attention_layernorm", drawer.hidden);
    model.is_mla() ? drawer.mla(prefix + "self_attn.") : drawer.gqa(prefix + "self_attn.");
    if (model.is_moe(layer)) {
      drawer.moe(prefix + "mlp.");
    } else {
      drawer.mlp(prefix + "mlp.", model.config["intermediate_size"]);
    }
  }
  drawer.norm("model.norm", drawer.hidden);
  if (!model.config["tie_word_embeddings"]) drawer.matrix("lm_head", vocab, drawer.hidden);
  return model;
}

std::string TinyDecoder::architecture() const { return config["architectures"][0]; }

bool TinyDecoder::is_mla() const { return architecture().starts_with("Deepseek"); }

uint64_t TinyDecoder::num_experts() const {
  return config.value(is_mla() ? "n_routed_experts" : "num_experts", 0);
}

bool TinyDecoder::is_moe(uint64_t layer) const {
  if (num_experts() == 0) return false;
  if (is_mla()) return layer >= config["first_k_dense_replace"].get<uint64_t>();
  const auto dense = config.value("mlp_only_layers", std::vector<uint64_t>());
  return std::find(dense.begin(), dense.end(), layer) == dense.end();
}

std::string TinyDecoder::safetensors_of(const std::map<std::string, TinyTensor>& some) const {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const auto& [name, tensor] : some) {
    const size_t begin = data.size();
    for (const float value : tensor.values) {
      if (dtype == "F32") {
        data.append(reinterpret_cast<const char*>(&value), sizeof(value));
      } else {
        const uint16_t bits = kernels::round_bf16(value);
        data.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
      }
    }
    header[name] = {
        {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data;
}

void TinyDecoder::write(const std::string& directory) const {
  write_file(directory + "/config.json", config.dump());
  write_file(directory + "/model.safetensors", safetensors());
}

void TinyDecoder::write_sharded(const std::string& directory, size_t num_shards) const {
  write_file(directory + "/config.json", config.dump());
  std::vector<std::map<std::string, TinyTensor>> shards(num_shards);
  nlohmann::json index;
  size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t shard = next++ % num_shards;
    shards[shard][name] = tensor;
    index["weight_map"][name] = "model-" + std::to_string(shard) + ".safetensors";
  }
  for (size_t i = 0; i < num_shards; ++i) {
    write_file(directory + "/model-" + std::to_string(i) + ".safetensors",
               safetensors_of(shards[i]));
  }
  write_file(directory + "/model.safetensors.index.json", index.dump());
}

Slab::Slab(const KvLayout& layout, uint32_t num_blocks)
    : num_blocks_(num_blocks), words_(num_blocks * layout.stride_bytes() / 8, ~uint64_t{0}) {}

std::vector<int32_t> random_tokens(size_t count, uint32_t vocab_size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

}  // namespace crossdock::testing
