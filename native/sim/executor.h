// Runs the simulated model on the engine's own slab, through the block tables it is given. A step
// takes virtual time: after every layer the world goes on without this engine for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "crossdock/model/executor.h"
#include "model.h"

namespace crossdock::sim {

class SimExecutor final : public Executor {
 public:
  // Called once a layer, before its bytes are in the slab, with the tokens of the step.
  using Spend = std::function<void(uint32_t num_tokens)>;

  SimExecutor(const Model& model, DType dtype, Spend spend);

  const ModelConfig& model() const override { return model_.config(); }
  const KvLayout& layout() const override { return layout_; }
  std::string numerics_id() const override;
  void bind_slab(std::byte* slab, uint32_t num_blocks) override;
  std::span<const float> run(std::span<const BatchItem> batch,
                             const LayerCallback& on_layer) override;
  void zero_tail(BlockId block, uint32_t num_used_slots) override;

 private:
  void run_layer(uint32_t layer, const BatchItem& item, std::span<uint64_t> states);
  std::byte* block(BlockId id) const;
  Model::Cell read(uint32_t layer, BlockId id, uint32_t slot) const;
  void write(uint32_t layer, BlockId id, uint32_t slot, const Model::Cell& cell);
  size_t value_offset(uint32_t layer, uint32_t slot, size_t value) const;

  const Model& model_;
  const KvLayout layout_;
  const Spend spend_;
  std::byte* slab_ = nullptr;
  uint32_t num_blocks_ = 0;
  std::vector<uint64_t> states_;  // what rises from layer to layer, a token of the batch each
  std::vector<float> logits_;
};

}  // namespace crossdock::sim
