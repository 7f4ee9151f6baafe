// A random decoder that a test writes as a checkpoint directory, and what it takes to run it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "crossdock/model/executor.h"

namespace crossdock::testing {

// A directory under the system's temporary one, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_file(const std::string& path, const std::string& content);
std::string read_file(const std::string& path);

struct TinyTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;  // exactly representable in the checkpoint's dtype
};

struct TinyDecoder {
  nlohmann::json config;
  std::string dtype = "F32";  // or "BF16"
  std::map<std::string, TinyTensor> tensors;

  // Every tensor drawn from `seed`; config holds the keys of a Hugging Face config.json.
  static TinyDecoder random(nlohmann::json config, const std::string& dtype, uint64_t seed);
  std::string architecture() const;
  bool is_mla() const;
  uint64_t num_experts() const;  // 0: dense
  bool is_moe(uint64_t layer) const;

  // config.json and model.safetensors.
  void write(const std::string& directory) const;
  // The same over `num_shards` files and an index.
  void write_sharded(const std::string& directory, size_t num_shards) const;
  std::string safetensors() const { return safetensors_of(tensors); }
  std::string safetensors_of(const std::map<std::string, TinyTensor>& some) const;
};

// Sizes that are no multiple of a panel, GQA with groups of 3; of DeepSeek a latent of 128 for six
// heads, the first layer dense, routed and shared experts (V3: q_lora, YaRN, noaux_tc; V2: neither
// of the first two, group_limited_greedy).
nlohmann::json tiny_config(const std::string& architecture = "LlamaForCausalLM");
inline constexpr const char* kArchitectures[] = {
    "DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM", "LlamaForCausalLM",  "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",      "Qwen3MoeForCausalLM",   "MistralForCausalLM"};

// Logits after each token of the sequence, by plain loops in double: attention over every earlier
// position at once, latents expanded into each head's keys and values. What is cached is rounded to
// bf16 when asked to.
std::vector<std::vector<double>> naive_logits(const TinyDecoder& model,
                                              const std::vector<int32_t>& tokens, bool kv_bf16);

// A slab of `num_blocks` filled with NaN, so that an unused slot that leaks is seen.
class Slab {
 public:
  Slab(const KvLayout& layout, uint32_t num_blocks);
  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
  uint32_t num_blocks() const { return num_blocks_; }

 private:
  uint32_t num_blocks_;
  std::vector<uint64_t> words_;
};

std::vector<int32_t> random_tokens(size_t count, uint32_t vocab_size, uint64_t seed);

}  // namespace crossdock::testing
