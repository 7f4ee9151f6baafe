#include "random_model.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace crossdock::bench {
namespace {

struct Planned {
  std::string name;
  std::vector<uint64_t> shape;
};

using Json = nlohmann::json;

std::vector<Planned> gqa(const Json& config) {
  const uint64_t hidden = config["hidden_size"], head_dim = config["head_dim"];
  const uint64_t q = config["num_attention_heads"].get<uint64_t>() * head_dim;
  const uint64_t kv = config["num_key_value_heads"].get<uint64_t>() * head_dim;
  return {{"q_proj", {q, hidden}},
          {"k_proj", {kv, hidden}},
          {"v_proj", {kv, hidden}},
          {"o_proj", {hidden, q}}};
}

std::vector<Planned> mla(const Json& config) {
  const uint64_t hidden = config["hidden_size"], heads = config["num_attention_heads"];
  const uint64_t latent = config["kv_lora_rank"], rope = config["qk_rope_head_dim"];
  const uint64_t nope = config["qk_nope_head_dim"], value = config["v_head_dim"];
  return {{"q_proj", {heads * (nope + rope), hidden}},
          {"kv_a_proj_with_mqa", {latent + rope, hidden}},
          {"kv_a_layernorm", {latent}},
          {"kv_b_proj", {heads * (nope + value), latent}},
          {"o_proj", {hidden, heads * value}}};
}

std::vector<Planned> plan(const Json& config) {
  const uint64_t hidden = config["hidden_size"], inner = config["intermediate_size"];
  const auto attention = config.contains("kv_lora_rank") ? mla(config) : gqa(config);
  std::vector<Planned> tensors = {{"model.embed_tokens.weight", {config["vocab_size"], hidden}},
                                  {"model.norm.weight", {hidden}}};
  for (uint64_t layer = 0; layer < config["num_hidden_layers"]; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.insert(tensors.end(), {{prefix + "input_layernorm.weight", {hidden}},
                                   {prefix + "post_attention_layernorm.weight", {hidden}},
                                   {prefix + "mlp.gate_proj.weight", {inner, hidden}},
                                   {prefix + "mlp.up_proj.weight", {inner, hidden}},
                                   {prefix + "mlp.down_proj.weight", {hidden, inner}}});
    for (const auto& [name, shape] : attention) {
      tensors.push_back({prefix + "self_attn." + name + ".weight", shape});
    }
  }
  return tensors;
}

// Uniform with a spread that keeps activations of order one.
uint16_t draw(uint64_t& state, float spread) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  const float unit = static_cast<float>(state >> 40) * 0x1p-23f - 1.0f;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(unit * spread) >> 16);
}

void write(const std::string& directory, const Json& config) {
  std::ofstream(directory + "/config.json") << config.dump();
  const auto tensors = plan(config);
  nlohmann::json header;
  std::vector<uint16_t> weights;
  uint64_t state = 1;
  for (const auto& tensor : tensors) {
    uint64_t count = 1;
    for (const uint64_t dimension : tensor.shape) count *= dimension;
    const size_t begin = weights.size() * 2;
    const float spread = 1.5f / std::sqrt(static_cast<float>(tensor.shape.back()));
    for (uint64_t i = 0; i < count; ++i) {
      weights.push_back(tensor.shape.size() == 1 ? 0x3f80 : draw(state, spread));
    }
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {begin, weights.size() * 2}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::ofstream file(directory + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << text;
  file.write(reinterpret_cast<const char*>(weights.data()),
             static_cast<std::streamsize>(weights.size() * 2));
}

}  // namespace

void write_random_model(const std::string& directory) {
  write(directory, {{"architectures", {"LlamaForCausalLM"}},
                    {"hidden_size", 576},
                    {"intermediate_size", 1536},
                    {"num_hidden_layers", 30},
                    {"num_attention_heads", 9},
                    {"num_key_value_heads", 3},
                    {"head_dim", 64},
                    {"vocab_size", 49152},
                    {"max_position_embeddings", 8192},
                    {"rms_norm_eps", 1e-5},
                    {"rope_theta", 100000.0},
                    {"tie_word_embeddings", true},
                    {"hidden_act", "silu"}});
}

void write_random_mla_model(const std::string& directory) {
  write(directory, {{"architectures", {"DeepseekV3ForCausalLM"}},
                    {"hidden_size", 1024},
                    {"intermediate_size", 2048},
                    {"num_hidden_layers", 2},
                    {"first_k_dense_replace", 2},
                    {"num_attention_heads", 16},
                    {"q_lora_rank", nullptr},
                    {"kv_lora_rank", 512},
                    {"qk_nope_head_dim", 128},
                    {"qk_rope_head_dim", 64},
                    {"v_head_dim", 128},
                    {"n_routed_experts", 2},
                    {"num_experts_per_tok", 1},
                    {"moe_intermediate_size", 16},
                    {"n_group", 1},
                    {"topk_group", 1},
                    {"vocab_size", 4096},
                    {"max_position_embeddings", 8192},
                    {"rms_norm_eps", 1e-6},
                    {"tie_word_embeddings", true},
                    {"hidden_act", "silu"}});
}

}  // namespace crossdock::bench
