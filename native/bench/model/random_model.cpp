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

std::vector<Planned> plan(const nlohmann::json& config) {
  const uint64_t hidden = config["hidden_size"], inner = config["intermediate_size"];
  const uint64_t head_dim = config["head_dim"];
  const uint64_t q = config["num_attention_heads"].get<uint64_t>() * head_dim;
  const uint64_t kv = config["num_key_value_heads"].get<uint64_t>() * head_dim;
  std::vector<Planned> tensors = {{"model.embed_tokens.weight", {config["vocab_size"], hidden}},
                                  {"model.norm.weight", {hidden}}};
  for (uint64_t layer = 0; layer < config["num_hidden_layers"]; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.insert(tensors.end(), {{prefix + "input_layernorm.weight", {hidden}},
                                   {prefix + "post_attention_layernorm.weight", {hidden}},
                                   {prefix + "self_attn.q_proj.weight", {q, hidden}},
                                   {prefix + "self_attn.k_proj.weight", {kv, hidden}},
                                   {prefix + "self_attn.v_proj.weight", {kv, hidden}},
                                   {prefix + "self_attn.o_proj.weight", {hidden, q}},
                                   {prefix + "mlp.gate_proj.weight", {inner, hidden}},
                                   {prefix + "mlp.up_proj.weight", {inner, hidden}},
                                   {prefix + "mlp.down_proj.weight", {hidden, inner}}});
  }
  return tensors;
}

// Uniform with a spread that keeps activations of order one.
uint16_t draw(uint64_t& state, float spread) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  const float unit = static_cast<float>(state >> 40) * 0x1p-23f - 1.0f;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(unit * spread) >> 16);
}

}  // namespace

void write_random_model(const std::string& directory) {
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
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
                                 {"hidden_act", "silu"}};
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

}  // namespace crossdock::bench
