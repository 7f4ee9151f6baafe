#include "executor.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace crossdock::sim {

SimExecutor::SimExecutor(const Model& model, DType dtype, Spend spend)
    : model_(model), layout_(model.layout(dtype)), spend_(std::move(spend)) {
  assert(dtype == DType::kF32 || dtype == DType::kBf16);
}

std::string SimExecutor::numerics_id() const {
  return "sim-v1;w=none;a=none;kv=" + name(layout_.dtype) + ";attn=hash";
}

void SimExecutor::bind_slab(std::byte* slab, uint32_t num_blocks) {
  slab_ = slab;
  num_blocks_ = num_blocks;
}

std::byte* SimExecutor::block(BlockId id) const {
  assert(id < num_blocks_);
  return slab_ + id * layout_.stride_bytes();
}

// K is [dim][slot], V is [slot][dim].
size_t SimExecutor::value_offset(uint32_t layer, uint32_t slot, size_t value) const {
  const size_t element = size_bytes(layout_.dtype);
  if (value < Model::kHeadDim) {
    return layout_.k_offset(layer, 0) + (value * kBlockTokens + slot) * element;
  }
  return layout_.v_offset(layer, 0) + (slot * Model::kHeadDim + value - Model::kHeadDim) * element;
}

Model::Cell SimExecutor::read(uint32_t layer, BlockId id, uint32_t slot) const {
  const std::byte* bytes = block(id);
  Model::Cell cell;
  for (size_t value = 0; value < cell.size(); ++value) {
    const std::byte* at = bytes + value_offset(layer, slot, value);
    if (layout_.dtype == DType::kF32) {
      std::memcpy(&cell[value], at, sizeof(float));
    } else {
      uint16_t upper = 0;
      std::memcpy(&upper, at, sizeof upper);
      cell[value] = std::bit_cast<float>(uint32_t{upper} << 16);
    }
  }
  return cell;
}

void SimExecutor::write(uint32_t layer, BlockId id, uint32_t slot, const Model::Cell& cell) {
  std::byte* bytes = block(id);
  for (size_t value = 0; value < cell.size(); ++value) {
    std::byte* at = bytes + value_offset(layer, slot, value);
    const auto bits = std::bit_cast<uint32_t>(cell[value]);
    if (layout_.dtype == DType::kF32) {
      std::memcpy(at, &bits, sizeof bits);
    } else {
      const auto upper = static_cast<uint16_t>(bits >> 16);
      std::memcpy(at, &upper, sizeof upper);
    }
  }
}

void SimExecutor::run_layer(uint32_t layer, const BatchItem& item, std::span<uint64_t> states) {
  const auto slot_of = [](uint32_t position) { return position % kBlockTokens; };
  const auto block_of = [&](uint32_t position) {
    return item.block_table[position / kBlockTokens];
  };
  uint64_t chain = model_.begin()[layer];
  for (uint32_t position = 0; position < item.first_position; ++position) {
    chain = Model::extend(chain, read(layer, block_of(position), slot_of(position)));
  }
  for (uint32_t i = 0; i < item.tokens.size(); ++i) {
    const uint32_t position = item.first_position + i;
    write(layer, block_of(position), slot_of(position), model_.cell(layer, states[i], chain));
    chain = Model::extend(chain, read(layer, block_of(position), slot_of(position)));
    states[i] = Model::above(states[i], chain);
  }
}

std::span<const float> SimExecutor::run(std::span<const BatchItem> batch,
                                        const LayerCallback& on_layer) {
  states_.clear();
  for (const BatchItem& item : batch) {
    for (uint32_t i = 0; i < item.tokens.size(); ++i) {
      states_.push_back(model_.embed(item.tokens[i], item.first_position + i));
    }
  }
  for (uint32_t layer = 0; layer < kNumLayers; ++layer) {
    spend_(static_cast<uint32_t>(states_.size()));
    std::span<uint64_t> left(states_);
    for (const BatchItem& item : batch) {
      run_layer(layer, item, left.first(item.tokens.size()));
      left = left.subspan(item.tokens.size());
    }
    on_layer(layer);
  }
  logits_.clear();
  size_t end = 0;
  for (const BatchItem& item : batch) {
    end += item.tokens.size();
    if (!item.wants_logits) continue;
    logits_.resize(logits_.size() + kVocabSize);
    model_.logits(states_[end - 1], std::span(logits_).last(kVocabSize));
  }
  return logits_;
}

void SimExecutor::zero_tail(BlockId id, uint32_t num_used_slots) {
  crossdock::zero_tail(layout_, num_used_slots, block(id));
}

}  // namespace crossdock::sim
