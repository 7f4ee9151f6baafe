// The weights of a decoder, checked against its configuration and packed into panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/kernels/product.h"
#include "crossdock/model/executor.h"
#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/thread_pool.h"
#include "safetensors.h"

namespace crossdock {

// Each matrix has its own format: norms and routers stay f32, an int4 model has an int8 head.
struct PackedMatrix {
  const std::byte* panels = nullptr;
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  uint32_t depth = 0;  // 0: the model has no such matrix
  uint32_t num_outputs = 0;
};

struct GqaWeights {
  PackedMatrix qkv;             // outputs: every query head, every key head, every value head
  std::vector<float> qkv_bias;  // empty: none
  std::vector<float> q_norm;    // [head_dim], empty: none
  std::vector<float> k_norm;
  PackedMatrix output;
};

struct MlaWeights {
  PackedMatrix q_a;  // hidden -> q_rank; absent without q_lora
  std::vector<float> q_a_norm;
  PackedMatrix q_b;   // q_rank (or hidden) -> heads * (nope + rope)
  PackedMatrix kv_a;  // hidden -> latent | rope
  std::vector<float> kv_a_norm;
  // kv_b_proj taken apart, a matrix a head, so that attention runs on the latent itself. Kept in
  // bf16 or f32, whichever holds the checkpoint.
  std::vector<PackedMatrix> key;    // nope -> latent: the transpose of the head's key part
  std::vector<PackedMatrix> value;  // latent -> value_dim
  // For prompts in the expanded form: latent -> nope, the head's key part as it is. Else empty.
  std::vector<PackedMatrix> expand;
  PackedMatrix output;  // heads * value_dim -> hidden
};

struct MlpWeights {
  PackedMatrix gate_up;  // panels of gate and up alternate; num_outputs counts one of them
  PackedMatrix down;
};

struct MoeWeights {
  PackedMatrix router;                 // f32
  std::vector<float> correction_bias;  // empty: none
  std::vector<MlpWeights> experts;
  MlpWeights shared;  // depth 0: none
};

struct LayerWeights {
  std::vector<float> attention_norm;
  std::vector<float> mlp_norm;
  std::variant<GqaWeights, MlaWeights> attention;
  std::variant<MlpWeights, MoeWeights> mlp;
};

struct DecoderWeights {
  // As served: "f32", "bf16", "fp8", "int8" or "int4", or "mixed" for a checkpoint served as it is
  // that no one of these would give.
  std::string dtype;
  PackedMatrix embedding;  // a token's embedding is one output
  PackedMatrix head;       // the embedding's own panels when tied
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  PageBuffer arena;  // what the panels point into
  // BLAKE2b-128 over the configuration and over name, dtype, shape and XXH3-128 of every tensor, so
  // it is the same for one file and for shards, and for every dtype it is served in.
  Fingerprint fingerprint{};

  // INVALID_ARGUMENT or UNIMPLEMENTED names file and tensor, what was expected and what was found.
  static Result<DecoderWeights> load(const Checkpoint& checkpoint, const ModelConfig& config,
                                     const WeightOptions& options, ThreadPool& pool);
};

}  // namespace crossdock
