// What config.json says, as one decoder built from parts: an attention kind, an MLP kind a layer,
// a norm, a RoPE. Whatever would change the arithmetic and is not built is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

// Rotary embedding over `dim` elements of a head. The scalings change the frequencies and, for
// YaRN, the magnitude of the rotated part.
struct RopeConfig {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn };
  uint32_t dim = 0;
  // True: pairs are (2i, 2i + 1), as DeepSeek has it; else (i, i + dim / 2).
  bool interleaved = false;
  float theta = 10000.0f;
  Scaling scaling = Scaling::kNone;
  float factor = 1.0f;
  uint32_t original_context_tokens = 0;  // original_max_position_embeddings
  float low_frequency_factor = 1.0f;     // Llama 3
  float high_frequency_factor = 4.0f;
  float beta_fast = 32.0f;  // YaRN
  float beta_slow = 1.0f;
  bool truncate = true;  // the corrected dimensions, to whole ones
  float mscale = 0.0f;
  float mscale_all_dim = 0.0f;
  float attention_factor = 0.0f;  // 0: from mscale, or else from factor
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). Cached per token: latent_rank values
// that every head shares, normed, and rope_dim values of the shared rotated key.
struct MlaConfig {
  uint32_t q_rank = 0;  // q_lora_rank; 0: queries straight from the hidden state
  uint32_t latent_rank = 0;
  uint32_t nope_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t value_dim = 0;
};

// Routed experts, and shared ones that every token takes.
struct MoeConfig {
  enum class Scoring : uint8_t { kSoftmax, kSigmoid };
  // kTop: the best experts of all; kGroupMax: groups ranked by their best expert (V2's
  // group_limited_greedy); kGroupTopTwo: by the sum of their best two, scores corrected by a bias
  // that chooses but does not weigh (V3's noaux_tc).
  enum class Selection : uint8_t { kTop, kGroupMax, kGroupTopTwo };
  uint32_t num_experts = 0;  // 0: every layer is dense
  uint32_t num_chosen = 0;   // a token
  uint32_t intermediate_size = 0;
  uint32_t shared_intermediate_size = 0;  // of all shared experts together; 0: none
  uint32_t num_groups = 1;
  uint32_t num_chosen_groups = 1;
  Scoring scoring = Scoring::kSoftmax;
  Selection selection = Selection::kTop;
  bool normalise = false;  // the chosen weights sum to one
  float scale = 1.0f;      // routed_scaling_factor
};

struct ModelConfig {
  enum class Attention : uint8_t { kGqa, kMla };
  std::string architecture;  // "LlamaForCausalLM", ...
  uint32_t num_layers = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;  // of dense layers
  uint32_t vocab_size = 0;
  uint32_t context_tokens_max = 0;  // max_position_embeddings, or a smaller sliding window
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  Attention attention = Attention::kGqa;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;  // GQA
  uint32_t head_dim = 0;      // GQA
  bool qkv_bias = false;      // Qwen2
  bool qk_norm = false;       // Qwen3: RMS norm of each head's query and key before RoPE
  MlaConfig mla;
  MoeConfig moe;
  std::vector<bool> is_moe;  // a layer
  RopeConfig rope;
  // quantization_config of a DeepSeek checkpoint: e4m3 with 128x128 block scales.
  bool fp8_block_scaled = false;
  std::vector<int32_t> eos_token_ids;  // generation_config.json, else config.json
};

// Reads config.json (and generation_config.json). NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED
// name the file and the key at fault.
Result<ModelConfig> load_model_config(const std::string& directory);

}  // namespace crossdock
