#include "crossdock/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

// The parts of `attend`'s scratch.
struct Scratch {
  float* q;       // [row][head_dim], scaled
  float* scores;  // [row][kRunSlots], later the exponentials
  AttentionState run;
};

Scratch carve(float* memory, uint32_t num_rows, uint32_t head_dim) {
  Scratch scratch{};
  scratch.q = memory;
  scratch.scores = scratch.q + size_t{num_rows} * head_dim;
  scratch.run = attention_state(scratch.scores + size_t{num_rows} * kRunSlots, num_rows, head_dim);
  return scratch;
}

void gather_queries(const QueryTile& tile, uint32_t head_dim, float* q) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const size_t group_floats = size_t{tile.group_heads} * head_dim;
  for (uint32_t token = 0; token < tile.num_tokens; ++token) {
    const float* from = tile.q + token * tile.token_stride;
    float* to = q + token * group_floats;
    for (size_t i = 0; i < group_floats; ++i) to[i] = from[i] * scale;
  }
}

// One run of one tile, as the row-wise kernels see it.
struct Run {
  const Kernels& kernels;
  const QueryTile& tile;
  const KvHead& kv;
  const Scratch& scratch;
  uint32_t first_slot;
  uint32_t first_token;  // of the tile: earlier ones see no slot of this run

  uint32_t first_row() const { return first_token * tile.group_heads; }
  uint32_t num_slots(uint32_t token) const {
    return std::min(kRunSlots, tile.first_position + token + 1 - first_slot);
  }
  const std::byte* block(uint32_t index) const {
    return kv.slab + tile.block_table[first_slot / kSlotsPerBlock + index] * kv.block_stride;
  }
};

void score_run(const Run& run) {
  const uint32_t num_slots = run.num_slots(run.tile.num_tokens - 1);
  const uint32_t num_blocks = (num_slots + kSlotsPerBlock - 1) / kSlotsPerBlock;
  const uint32_t row = run.first_row();
  for (uint32_t b = 0; b < num_blocks; ++b) {
    run.kernels.scores({run.scratch.q + size_t{row} * run.kv.head_dim, run.tile.num_rows() - row,
                        run.kv.head_dim, run.block(b) + run.kv.k_offset, run.kv.type,
                        run.scratch.scores + size_t{row} * kRunSlots + b * kSlotsPerBlock,
                        kRunSlots});
  }
}

void exponentiate_run(const Run& run) {
  for (uint32_t token = run.first_token; token < run.tile.num_tokens; ++token) {
    for (uint32_t head = 0; head < run.tile.group_heads; ++head) {
      const uint32_t row = token * run.tile.group_heads + head;
      run.kernels.softmax(run.scratch.scores + size_t{row} * kRunSlots, run.num_slots(token),
                          run.scratch.run.max + row, run.scratch.run.sum + row);
    }
  }
}

// The slots that every row sees are summed for all rows at once; the few past them token by token,
// so that no slot outside a row's own context enters its chain, not even times zero.
void sum_run(const Run& run) {
  const std::byte* v_blocks[kRunBlocks];
  const uint32_t last_slots = run.num_slots(run.tile.num_tokens - 1);
  for (uint32_t b = 0; b * kSlotsPerBlock < last_slots; ++b) {
    v_blocks[b] = run.block(b) + run.kv.v_offset;
  }
  const uint32_t row = run.first_row();
  WeightedSum sum{run.scratch.scores + size_t{row} * kRunSlots,
                  kRunSlots,
                  run.tile.num_rows() - row,
                  run.kv.head_dim,
                  v_blocks,
                  run.kv.type,
                  0,
                  run.num_slots(run.first_token),
                  run.scratch.run.values + size_t{row} * run.kv.head_dim};
  run.kernels.weighted_sum(sum);
  sum.slot_begin = sum.slot_end;
  sum.num_rows = run.tile.group_heads;
  for (uint32_t token = run.first_token; token < run.tile.num_tokens; ++token) {
    sum.slot_end = run.num_slots(token);
    if (sum.slot_end > sum.slot_begin) run.kernels.weighted_sum(sum);
    sum.p += size_t{sum.num_rows} * kRunSlots;
    sum.values += size_t{sum.num_rows} * run.kv.head_dim;
  }
}

void copy_row(const AttentionState& to, const AttentionState& from, uint32_t row,
              uint32_t head_dim) {
  to.max[row] = from.max[row];
  to.sum[row] = from.sum[row];
  std::memcpy(to.values + size_t{row} * head_dim, from.values + size_t{row} * head_dim,
              head_dim * sizeof(float));
}

}  // namespace

AttentionState attention_state(float* memory, uint32_t num_rows, uint32_t head_dim) {
  return {memory + size_t{num_rows} * head_dim, memory + size_t{num_rows} * (head_dim + 1), memory};
}

size_t attention_scratch_floats(uint32_t num_rows, uint32_t head_dim) {
  return size_t{num_rows} * (head_dim + kRunSlots) + attention_state_floats(num_rows, head_dim);
}

void attend(const Kernels& kernels, const QueryTile& tile, const KvHead& kv, RunRange runs,
            const AttentionState& state, float* memory) {
  const Scratch scratch = carve(memory, tile.num_rows(), kv.head_dim);
  gather_queries(tile, kv.head_dim, scratch.q);
  for (uint32_t index = runs.begin; index < runs.end; ++index) {
    const uint32_t first_slot = index * kRunSlots;
    const uint32_t first_token =
        first_slot > tile.first_position ? first_slot - tile.first_position : 0;
    const Run run{kernels, tile, kv, scratch, first_slot, first_token};
    score_run(run);
    exponentiate_run(run);
    sum_run(run);
    for (uint32_t row = run.first_row(); row < tile.num_rows(); ++row) {
      if (index == runs.begin) {
        copy_row(state, scratch.run, row, kv.head_dim);
      } else {
        merge_row(state, scratch.run, row, kv.head_dim);
      }
    }
  }
}

void merge_row(const AttentionState& into, const AttentionState& next, uint32_t row,
               uint32_t head_dim) {
  const float max = into.max[row] > next.max[row] ? into.max[row] : next.max[row];
  const float old_scale = exp_f32(into.max[row] - max);
  const float new_scale = exp_f32(next.max[row] - max);
  into.max[row] = max;
  into.sum[row] = into.sum[row] * old_scale + next.sum[row] * new_scale;
  float* values = into.values + size_t{row} * head_dim;
  const float* added = next.values + size_t{row} * head_dim;
  for (uint32_t dim = 0; dim < head_dim; ++dim) {
    values[dim] = values[dim] * old_scale + added[dim] * new_scale;
  }
}

void finish_row(const AttentionState& state, uint32_t row, uint32_t head_dim, float* out) {
  const float* values = state.values + size_t{row} * head_dim;
  const float sum = state.sum[row];
  for (uint32_t dim = 0; dim < head_dim; ++dim) out[dim] = values[dim] / sum;
}

}  // namespace crossdock::kernels
