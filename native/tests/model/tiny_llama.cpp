#include "tiny_llama.h"

#include <unistd.h>

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

using Vector = std::vector<double>;

Vector matvec(const TinyTensor& matrix, const Vector& x) {
  Vector y(matrix.shape[0], 0.0);
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += double{matrix.values[n * x.size() + k]} * x[k];
  }
  return y;
}

Vector rms_norm(const TinyTensor& weight, const Vector& x, double epsilon) {
  double mean = 0.0;
  for (const double value : x) mean += value * value / static_cast<double>(x.size());
  Vector y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(x[i] / std::sqrt(mean + epsilon) * double{weight.values[i]});
  }
  return y;
}

void rotate(double* head, size_t head_dim, size_t position, double theta) {
  for (size_t i = 0; i < head_dim / 2; ++i) {
    const double angle =
        static_cast<double>(position) *
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double a = head[i], b = head[i + head_dim / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + head_dim / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// The naive model: one token at a time against all the K and V so far.
struct Naive {
  const TinyLlama& model;
  const bool kv_bf16;
  const size_t num_heads = model.config["num_attention_heads"];
  const size_t num_kv_heads = model.config["num_key_value_heads"];
  const size_t head_dim = model.config["head_dim"];
  const size_t num_layers = model.config["num_hidden_layers"];
  const double theta = model.config["rope_theta"];
  const double epsilon = model.config["rms_norm_eps"];
  std::vector<std::vector<Vector>> keys{num_layers}, values{num_layers};  // [layer][position]

  const TinyTensor& weight(size_t layer, const std::string& name) const {
    return model.tensors.at("model.layers." + std::to_string(layer) + "." + name + ".weight");
  }

  Vector attention(size_t layer, const Vector& x, size_t position) {
    Vector q = matvec(weight(layer, "self_attn.q_proj"), x);
    Vector k = matvec(weight(layer, "self_attn.k_proj"), x);
    Vector v = matvec(weight(layer, "self_attn.v_proj"), x);
    for (size_t h = 0; h < num_heads; ++h) rotate(&q[h * head_dim], head_dim, position, theta);
    for (size_t h = 0; h < num_kv_heads; ++h) rotate(&k[h * head_dim], head_dim, position, theta);
    if (kv_bf16) {
      for (double& value : k) value = bf16(value);
      for (double& value : v) value = bf16(value);
    }
    keys[layer].push_back(k);
    values[layer].push_back(v);
    Vector out(num_heads * head_dim, 0.0);
    for (size_t h = 0; h < num_heads; ++h) {
      const size_t kv = h / (num_heads / num_kv_heads) * head_dim;
      Vector p;
      for (const auto& key : keys[layer]) {
        double score = 0.0;
        for (size_t d = 0; d < head_dim; ++d) score += q[h * head_dim + d] * key[kv + d];
        p.push_back(std::exp(score / std::sqrt(static_cast<double>(head_dim))));
      }
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (size_t t = 0; t < p.size(); ++t) {
        for (size_t d = 0; d < head_dim; ++d) {
          out[h * head_dim + d] += p[t] / sum * values[layer][t][kv + d];
        }
      }
    }
    return matvec(weight(layer, "self_attn.o_proj"), out);
  }

  Vector mlp(size_t layer, const Vector& x) const {
    Vector gate = matvec(weight(layer, "mlp.gate_proj"), x);
    const Vector up = matvec(weight(layer, "mlp.up_proj"), x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return matvec(weight(layer, "mlp.down_proj"), gate);
  }

  Vector step(int32_t token, size_t position) {
    const TinyTensor& embedding = model.tensors.at("model.embed_tokens.weight");
    const size_t hidden = embedding.shape[1];
    const auto row = embedding.values.begin() + static_cast<ptrdiff_t>(token * hidden);
    Vector x(row, row + static_cast<ptrdiff_t>(hidden));
    const auto add = [&](const Vector& y) {
      for (size_t i = 0; i < hidden; ++i) x[i] += y[i];
    };
    for (size_t layer = 0; layer < num_layers; ++layer) {
      add(attention(layer, rms_norm(weight(layer, "input_layernorm"), x, epsilon), position));
      add(mlp(layer, rms_norm(weight(layer, "post_attention_layernorm"), x, epsilon)));
    }
    const bool tied = model.config["tie_word_embeddings"];
    return matvec(tied ? embedding : model.tensors.at("lm_head.weight"),
                  rms_norm(model.tensors.at("model.norm.weight"), x, epsilon));
  }
};

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

nlohmann::json tiny_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
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
}

TinyLlama TinyLlama::random(nlohmann::json config, const std::string& dtype, uint64_t seed) {
  TinyLlama model{config, dtype, {}};
  std::mt19937_64 random(seed);
  const uint64_t hidden = config["hidden_size"], inner = config["intermediate_size"];
  const uint64_t head_dim = config["head_dim"], vocab = config["vocab_size"];
  const uint64_t q = config["num_attention_heads"].get<uint64_t>() * head_dim;
  const uint64_t kv = config["num_key_value_heads"].get<uint64_t>() * head_dim;
  const auto matrix = [&](const std::string& name, uint64_t outputs, uint64_t depth) {
    model.tensors[name] = draw({outputs, depth}, 0.0, 1.2 / std::sqrt(static_cast<double>(depth)),
                               dtype == "BF16", random);
  };
  const auto norm = [&](const std::string& name) {
    model.tensors[name] = draw({hidden}, 1.0, 0.1, dtype == "BF16", random);
  };
  matrix("model.embed_tokens.weight", vocab, hidden);
  for (uint64_t layer = 0; layer < config["num_hidden_layers"]; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    norm(prefix + "input_layernorm.weight");
    norm(prefix + "post_attention_layernorm.weight");
    matrix(prefix + "self_attn.q_proj.weight", q, hidden);
    matrix(prefix + "self_attn.k_proj.weight", kv, hidden);
    matrix(prefix + "self_attn.v_proj.weight", kv, hidden);
    matrix(prefix + "self_attn.o_proj.weight", hidden, q);
    matrix(prefix + "mlp.gate_proj.weight", inner, hidden);
    matrix(prefix + "mlp.up_proj.weight", inner, hidden);
    matrix(prefix + "mlp.down_proj.weight", hidden, inner);
  }
  norm("model.norm.weight");
  if (!config["tie_word_embeddings"]) matrix("lm_head.weight", vocab, hidden);
  return model;
}

std::string TinyLlama::safetensors_of(const std::map<std::string, TinyTensor>& some) const {
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

void TinyLlama::write(const std::string& directory) const {
  write_file(directory + "/config.json", config.dump());
  write_file(directory + "/model.safetensors", safetensors());
}

void TinyLlama::write_sharded(const std::string& directory, size_t num_shards) const {
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

std::vector<std::vector<double>> naive_logits(const TinyLlama& model,
                                              const std::vector<int32_t>& tokens, bool kv_bf16) {
  Naive naive{model, kv_bf16};
  std::vector<std::vector<double>> logits;
  for (size_t i = 0; i < tokens.size(); ++i) logits.push_back(naive.step(tokens[i], i));
  return logits;
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
