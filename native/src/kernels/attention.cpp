#include "crossdock/kernels/attention.h"

#include <algorithm>
#include <cstring>

#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

// The parts of `attend`'s scratch.
struct Scratch {
  float* q;       // [row][key_dim], scaled
  float* scores;  // [row][kRunSlots], later the exponentials
  AttentionState run;
  float* block;  // for the kernels: a block widened
};

Scratch carve(float* memory, uint32_t num_rows, const KvHead& kv) {
  Scratch scratch{};
  scratch.q = memory;
  scratch.scores = scratch.q + size_t{num_rows} * kv.key_dim;
  scratch.run =
      attention_state(scratch.scores + size_t{num_rows} * kRunSlots, num_rows, kv.value_dim);
  scratch.block = scratch.run.sum + num_rows;
  return scratch;
}

void gather_queries(const QueryTile& tile, const KvHead& kv, float* q) {
  const float scale = is_fp8(kv.type) && !kv.latent ? tile.scale * kFp8Lift : tile.scale;
  const size_t group_floats = size_t{tile.group_heads} * kv.key_dim;
  for (uint32_t token = 0; token < tile.num_tokens; ++token) {
    const float* from = tile.q + token * tile.token_stride;
    float* to = q + token * group_floats;
    for (size_t i = 0; i < group_floats; ++i) to[i] = from[i] * scale;
  }
}

// One run of one tile, as the row-wise kernels see it.
struct Run {
  const AttentionKernels& kernels;
  const QueryTile& tile;
  const KvHead& kv;
  const Scratch& scratch;
  uint32_t first_slot;
  uint32_t first_token;  // of the tile: earlier ones see no slot of this run

  uint32_t first_row() const { return first_token * tile.group_heads; }
  uint32_t num_slots(uint32_t token) const {
    return std::min(kRunSlots, tile.first_position + token + 1 - first_slot);
  }
  uint32_t num_blocks() const {
    return (num_slots(tile.num_tokens - 1) + kSlotsPerBlock - 1) / kSlotsPerBlock;
  }
  const std::byte* block(uint32_t index) const {
    return kv.slab + tile.block_table[first_slot / kSlotsPerBlock + index] * kv.block_stride;
  }
  // K of the blocks in order, then V of the blocks in order: that is how memory is read.
  const std::byte* part(uint32_t index) const {
    const uint32_t n = num_blocks();
    return index < n ? block(index) + kv.k_offset : block(index - n) + kv.v_offset;
  }
  size_t part_bytes() const { return kSlotsPerBlock * kv.key_dim * size_bytes(kv.type); }
  // How many parts ahead of their use the kernels fetch: far enough to hide the latency of memory
  // and near enough to be in the second level still.
  uint32_t parts_ahead() const {
    constexpr size_t kBytes = 8192;
    return static_cast<uint32_t>(std::max<size_t>(2, kBytes / part_bytes()));
  }
  KvBlock part_with_next(uint32_t index, uint32_t dim) const {
    const uint32_t next = std::min(index + parts_ahead(), 2 * num_blocks() - 1);
    return {part(index), part(next), kv.type, dim};
  }
  // What no kernel has fetched ahead: all at once, since one miss at a time would take as long as
  // the rest of the run (measured over huge pages, 3 rows of bf16: 10.2 us a run, 7.9 with this).
  void fetch_first_parts() const {
    const uint32_t count = std::min(parts_ahead(), 2 * num_blocks());
    for (uint32_t index = 0; index < count; ++index) {
      for (size_t at = 0; at < part_bytes(); at += 64) __builtin_prefetch(part(index) + at, 0, 2);
    }
  }
  // Latent rows are widened for all query rows at once, and from there on are as others.
  KvBlock k(uint32_t index) const {
    if (!kv.latent) return part_with_next(index, kv.key_dim);
    kernels.widen_keys(latent_rows(index), scratch.block);
    return widened(kv.key_dim);
  }
  KvBlock v(uint32_t index) const {
    if (!kv.latent) return part_with_next(num_blocks() + index, kv.value_dim);
    kernels.widen_values(latent_rows(index), scratch.block);
    return widened(kv.value_dim);
  }
  LatentRows latent_rows(uint32_t index) const {
    const LatentForm form{kv.type, kv.value_dim, kv.key_dim - kv.value_dim};
    return {block(index) + kv.k_offset,
            form.row_bytes(),
            form.scales_offset(),
            form.rope_offset(),
            kv.type,
            form.latent_dim,
            form.rope_dim};
  }
  KvBlock widened(uint32_t dim) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(scratch.block);
    return {bytes, bytes, ElementType::kF32, dim};
  }
};

void score_run(const Run& run) {
  const uint32_t row = run.first_row(), num_blocks = run.num_blocks();
  if (!run.kv.latent) run.fetch_first_parts();
  for (uint32_t b = 0; b < num_blocks; ++b) {
    run.kernels.scores({run.scratch.q + size_t{row} * run.kv.key_dim, run.tile.num_rows() - row,
                        run.k(b), run.scratch.scores + size_t{row} * kRunSlots + b * kSlotsPerBlock,
                        kRunSlots, run.scratch.block});
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

// Slots of block `index` among the first num_slots of the run.
uint32_t slots_in_block(uint32_t num_slots, uint32_t index) {
  const uint32_t first = index * kSlotsPerBlock;
  return num_slots <= first ? 0 : std::min(num_slots - first, kSlotsPerBlock);
}

// The slots that every row sees are summed for all rows at once; the few past them token by token,
// so that no slot outside a row's own context enters its chain, not even times zero.
void sum_run(const Run& run) {
  const uint32_t row = run.first_row(), num_blocks = run.num_blocks();
  const uint32_t group = run.tile.group_heads, value_dim = run.kv.value_dim;
  float* values = run.scratch.run.values + size_t{row} * value_dim;
  std::fill_n(values, size_t{run.tile.num_rows() - row} * value_dim, 0.0f);
  for (uint32_t b = 0; b < num_blocks; ++b) {
    const float* p = run.scratch.scores + size_t{row} * kRunSlots + b * kSlotsPerBlock;
    const uint32_t common = slots_in_block(run.num_slots(run.first_token), b);
    WeightedSum sum{p,      kRunSlots, run.tile.num_rows() - row, run.v(b), 0,
                    common, values,    run.scratch.block};
    if (common > 0) run.kernels.weighted_sum(sum);
    if (common == kSlotsPerBlock) continue;
    sum.slot_begin = common;
    sum.num_rows = group;
    for (uint32_t token = run.first_token; token < run.tile.num_tokens; ++token) {
      sum.slot_end = slots_in_block(run.num_slots(token), b);
      if (sum.slot_end > common) run.kernels.weighted_sum(sum);
      sum.p += size_t{group} * kRunSlots;
      sum.values += size_t{group} * value_dim;
    }
  }
  if (!is_fp8(run.kv.type) || run.kv.latent) return;
  const size_t num_values = size_t{run.tile.num_rows() - row} * value_dim;
  for (size_t i = 0; i < num_values; ++i) values[i] *= fp8_rest(run.kv.type);
}

void copy_row(const AttentionState& to, const AttentionState& from, uint32_t row,
              uint32_t value_dim) {
  to.max[row] = from.max[row];
  to.sum[row] = from.sum[row];
  std::memcpy(to.values + size_t{row} * value_dim, from.values + size_t{row} * value_dim,
              value_dim * sizeof(float));
}

}  // namespace

AttentionState attention_state(float* memory, uint32_t num_rows, uint32_t value_dim) {
  return {memory + size_t{num_rows} * value_dim, memory + size_t{num_rows} * (value_dim + 1),
          memory};
}

size_t attention_scratch_floats(uint32_t num_rows, uint32_t key_dim, uint32_t value_dim) {
  return size_t{num_rows} * (key_dim + kRunSlots) + attention_state_floats(num_rows, value_dim) +
         block_scratch_floats(num_rows, std::max(key_dim, value_dim));
}

void attend(const AttentionKernels& kernels, const QueryTile& tile, const KvHead& kv, RunRange runs,
            const AttentionState& state, float* memory) {
  const Scratch scratch = carve(memory, tile.num_rows(), kv);
  gather_queries(tile, kv, scratch.q);
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
        copy_row(state, scratch.run, row, kv.value_dim);
      } else {
        merge_row(state, scratch.run, row, kv.value_dim);
      }
    }
  }
}

void merge_row(const AttentionState& into, const AttentionState& next, uint32_t row,
               uint32_t value_dim) {
  const float max = into.max[row] > next.max[row] ? into.max[row] : next.max[row];
  const float old_scale = exp_f32(into.max[row] - max);
  const float new_scale = exp_f32(next.max[row] - max);
  into.max[row] = max;
  into.sum[row] = into.sum[row] * old_scale + next.sum[row] * new_scale;
  float* values = into.values + size_t{row} * value_dim;
  const float* added = next.values + size_t{row} * value_dim;
  for (uint32_t dim = 0; dim < value_dim; ++dim) {
    values[dim] = values[dim] * old_scale + added[dim] * new_scale;
  }
}

void finish_row(const AttentionState& state, uint32_t row, uint32_t value_dim, float* out) {
  const float* values = state.values + size_t{row} * value_dim;
  const float sum = state.sum[row];
  for (uint32_t dim = 0; dim < value_dim; ++dim) out[dim] = values[dim] / sum;
}

}  // namespace crossdock::kernels
