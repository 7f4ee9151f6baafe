// The weights of a Llama checkpoint, checked against its configuration and packed into panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/model/executor.h"
#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/thread_pool.h"
#include "safetensors.h"

namespace crossdock {

struct PackedMatrix {
  const std::byte* panels = nullptr;
  uint32_t depth = 0;
  uint32_t num_outputs = 0;
};

struct LlamaLayer {
  std::vector<float> attention_norm;
  std::vector<float> mlp_norm;
  PackedMatrix qkv;      // outputs: every query head, every key head, every value head
  PackedMatrix output;   // of attention
  PackedMatrix gate_up;  // panels of gate and up alternate; num_outputs counts one of them
  PackedMatrix down;
};

struct LlamaWeights {
  kernels::WeightFormat format = kernels::WeightFormat::kF32;  // of every matrix
  PackedMatrix embedding;                                      // a token's embedding is one output
  PackedMatrix head;  // the embedding's own panels when tied
  std::vector<LlamaLayer> layers;
  std::vector<float> final_norm;
  PageBuffer arena;  // what the panels point into
  // BLAKE2b-128 over the configuration and over name, dtype, shape and XXH3-128 of every tensor, so
  // it is the same for one file and for shards.
  Fingerprint fingerprint{};

  // INVALID_ARGUMENT or UNIMPLEMENTED names file and tensor, what was expected and what was found.
  static Result<LlamaWeights> load(const Checkpoint& checkpoint, const ModelConfig& config,
                                   ThreadPool& pool);
};

}  // namespace crossdock
