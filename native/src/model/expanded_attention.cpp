#include "expanded_attention.h"

#include <algorithm>
#include <cassert>

#include "crossdock/kernels/attention.h"
#include "crossdock/model/kv_convert.h"

namespace crossdock {

using kernels::kRunSlots;
using kernels::kTileRows;

namespace {

constexpr uint32_t in_eights(uint32_t dim) { return (dim + 7) / 8 * 8; }

// A run lies in its thread's memory in order.
constexpr uint32_t kRunTable[kernels::kRunBlocks] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};

kernels::AttentionState rows_from(const kernels::AttentionState& state, uint32_t row,
                                  uint32_t value_dim) {
  return {state.max + row, state.sum + row, state.values + size_t{row} * value_dim};
}

}  // namespace

ExpandedAttention::ExpandedAttention(const PartTools& tools, const KvLayout& layout, float scale)
    : kernels_(tools.kernels),
      pool_(tools.pool),
      layout_(layout),
      mla_(tools.model.mla),
      num_heads_(tools.model.num_heads),
      scale_(scale),
      key_dim_(mla_.nope_dim + mla_.rope_dim),
      nope_stride_(in_eights(mla_.nope_dim)),
      value_stride_(in_eights(mla_.value_dim)) {}

void ExpandedAttention::prepare(uint32_t num_rows_max) {
  scratch_.resize(pool_.num_threads());
  for (Scratch& scratch : scratch_) {
    grow(scratch.latents, size_t{kBlockTokens} * mla_.latent_rank);
    grow(scratch.keys, size_t{kBlockTokens} * nope_stride_);
    grow(scratch.run, kernels::kRunBlocks * block_floats());
    grow(scratch.product, kernels::product_scratch_floats(mla_.latent_rank));
    grow(scratch.tile, kernels::attention_state_floats(kTileRows, value_stride_) +
                           kernels::attention_scratch_floats(kTileRows, key_dim_, value_stride_));
    grow(scratch.rows, kernels::attention_state_floats(num_rows_max, value_stride_));
  }
}

void ExpandedAttention::run(const MlaWeights& weights, const AttentionStep& step,
                            const Rows& queries, const Rows& out) {
  const auto& prompts = step.set.prompts;
  uint32_t rows_max = 0;
  for (const PromptRows& prompt : prompts) rows_max = std::max(rows_max, prompt.num_rows);
  prepare(rows_max);
  const Pass pass{weights, step, queries, out};
  const size_t num_tasks = prompts.size() * num_heads_;
  pool_.parallel_for(num_tasks, 1, [&](size_t begin, size_t end, uint32_t thread) {
    for (size_t i = begin; i < end; ++i) {
      run_head(pass, prompts[i / num_heads_], static_cast<uint32_t>(i % num_heads_),
               scratch_[thread]);
    }
  });
}

void ExpandedAttention::run_head(const Pass& pass, const PromptRows& prompt, uint32_t head,
                                 Scratch& scratch) const {
  const uint32_t end = prompt.first_position + prompt.num_rows;
  for (uint32_t begin = 0; begin < end; begin += kRunSlots) {
    const RunSlots run{begin, std::min(kRunSlots, end - begin)};
    expand(pass, prompt, run, head, scratch);
    attend(pass, prompt, run, head, scratch);
  }
  const auto state = kernels::attention_state(scratch.rows.data(), prompt.num_rows, value_stride_);
  for (uint32_t row = 0; row < prompt.num_rows; ++row) {
    kernels::finish_row(rows_from(state, row, value_stride_), 0, mla_.value_dim,
                        pass.out[prompt.first_row + row] + size_t{head} * mla_.value_dim);
  }
}

void ExpandedAttention::expand(const Pass& pass, const PromptRows& prompt, const RunSlots& run,
                               uint32_t head, Scratch& scratch) const {
  const kernels::LatentForm form{element_type(layout_.dtype), mla_.latent_rank, mla_.rope_dim};
  for (uint32_t slot = 0; slot < run.num_slots; slot += kBlockTokens) {
    const BlockId block = prompt.block_table[(run.begin + slot) / kBlockTokens];
    const uint32_t num_slots = std::min(kBlockTokens, run.num_slots - slot);
    kernels::LatentRows cached{
        pass.step.slab + block * layout_.stride_bytes() + layout_.row_offset(pass.step.layer, 0),
        form.row_bytes(),
        form.scales_offset(),
        form.rope_offset(),
        form.type,
        form.latent_dim,
        form.rope_dim};
    kernels_.attention.widen_values(cached, scratch.latents.data());
    float* k = scratch.run.data() + slot / kBlockTokens * block_floats();
    multiply(pass.weights.expand[head], num_slots, {scratch.keys.data(), nope_stride_, num_slots},
             scratch);
    // Widening keys transposes them: first the head's own, whose padding the rotated part replaces.
    kernels_.attention.widen_keys(
        {reinterpret_cast<const std::byte*>(scratch.keys.data()), nope_stride_ * sizeof(float), 0,
         0, kernels::ElementType::kF32, nope_stride_, 0},
        k);
    cached.latent_dim = 0;
    kernels_.attention.widen_keys(cached, k + size_t{mla_.nope_dim} * kBlockTokens);
    multiply(pass.weights.value[head], num_slots,
             {k + size_t{key_dim_} * kBlockTokens, value_stride_, num_slots}, scratch);
  }
}

// A block's latents times a matrix of the head's.
void ExpandedAttention::multiply(const PackedMatrix& matrix, uint32_t num_slots, const Rows& y,
                                 Scratch& scratch) const {
  assert(!kernels::is_integer(matrix.format) && matrix.depth == mla_.latent_rank);
  const uint32_t tile_rows = kernels::product_tile_rows(matrix.depth);
  for (uint32_t slot = 0; slot < num_slots; slot += tile_rows) {
    const kernels::Product job{.x = scratch.latents.data() + size_t{slot} * matrix.depth,
                               .x_stride = matrix.depth,
                               .num_rows = std::min(tile_rows, num_slots - slot),
                               .tile_rows = tile_rows,
                               .depth = matrix.depth,
                               .panels = matrix.panels,
                               .format = matrix.format,
                               .num_outputs = matrix.num_outputs,
                               .y = y[slot],
                               .y_stride = y.stride};
    kernels_.product(job, 0, job.num_units(), scratch.product.data());
  }
}

// The rows that see the run, tile by tile. Positions count from its begin, where its memory does.
void ExpandedAttention::attend(const Pass& pass, const PromptRows& prompt, const RunSlots& run,
                               uint32_t head, Scratch& scratch) const {
  const kernels::KvHead kv{.slab = reinterpret_cast<const std::byte*>(scratch.run.data()),
                           .block_stride = block_floats() * sizeof(float),
                           .v_offset = size_t{kBlockTokens} * key_dim_ * sizeof(float),
                           .key_dim = key_dim_,
                           .value_dim = value_stride_};
  const auto state = kernels::attention_state(scratch.rows.data(), prompt.num_rows, value_stride_);
  float* tile_scratch =
      scratch.tile.data() + kernels::attention_state_floats(kTileRows, value_stride_);
  uint32_t row = run.begin > prompt.first_position ? run.begin - prompt.first_position : 0;
  for (; row < prompt.num_rows; row += kTileRows) {
    const kernels::QueryTile tile{
        .q = pass.queries[prompt.first_row + row] + size_t{head} * key_dim_,
        .token_stride = pass.queries.stride,
        .num_tokens = std::min(kTileRows, prompt.num_rows - row),
        .group_heads = 1,
        .first_position = prompt.first_position + row - run.begin,
        .block_table = kRunTable,
        .scale = scale_};
    const auto earlier = rows_from(state, row, value_stride_);
    const auto next = run.begin == 0 ? earlier
                                     : kernels::attention_state(scratch.tile.data(),
                                                                tile.num_tokens, value_stride_);
    kernels::attend(kernels_.attention, tile, kv, {0, 1}, next, tile_scratch);
    if (run.begin == 0) continue;
    for (uint32_t i = 0; i < tile.num_tokens; ++i) {
      kernels::merge_row(earlier, next, i, value_stride_);
    }
  }
}

}  // namespace crossdock
