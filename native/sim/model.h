// A model whose every token depends on every byte of the cache before it.
//
// Each layer of a position holds eight values that are a hash of the token, the position, what the
// layers below made of it, and what is read back of this layer at all earlier positions. They are
// whole numbers of eight bits, which every KV dtype of 16 bits and more holds exactly, so that
// conversion changes nothing. A byte that is wrong, stale or missing anywhere gives other tokens
// from there on.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/engine/messages.h"
#include "crossdock/model/model_config.h"

namespace crossdock::sim {

inline constexpr uint32_t kNumLayers = 4;
inline constexpr uint32_t kVocabSize = 256;
inline constexpr int32_t kEosTokenId = 0;
inline constexpr uint32_t kContextTokensMax = 2048;

class Model {
 public:
  static constexpr uint32_t kHeadDim = 4;
  using Cell = std::array<float, 2 * kHeadDim>;  // K and V of one layer at one position

  explicit Model(const std::string& name);

  const ModelConfig& config() const { return config_; }
  KvLayout layout(DType dtype) const;

  // What is carried along one sequence: for each layer a hash of the cells read back so far.
  using Chains = std::array<uint64_t, kNumLayers>;
  Chains begin() const;
  // What enters the first layer.
  uint64_t embed(int32_t token, uint32_t position) const;
  // What a layer stores for a position: `below` came from the layer below it.
  Cell cell(uint32_t layer, uint64_t below, uint64_t chain) const;
  static uint64_t extend(uint64_t chain, const Cell& cell);
  static uint64_t above(uint64_t below, uint64_t chain);
  void logits(uint64_t top, std::span<float> row) const;

 private:
  uint64_t seed_;
  Fingerprint fingerprint_{};
  ModelConfig config_;
};

// The tokens that a task gives on any topology, a final stop token among them. INVALID_ARGUMENT as
// the engine has it.
Result<std::vector<int32_t>> oracle(const Model& model, const link::Task& task);

}  // namespace crossdock::sim
