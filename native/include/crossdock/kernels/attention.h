// Paged attention of one KV head over the blocks of one sequence.
//
// The fixed order: slots are processed in runs of 16 blocks (512 tokens). A run has its own
// maximum, its own sum of exponentials and its own weighted sum of V, each reduced in slot order;
// runs are then merged in order. So runs may be computed by different threads, and rows tiled in
// any way, without changing a bit. Slots past a row's own position are never read into a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossdock/kernels/block_attention.h"

namespace crossdock::kernels {

inline constexpr uint32_t kSlotsPerBlock = 32;
inline constexpr uint32_t kRunBlocks = 16;
inline constexpr uint32_t kRunSlots = kRunBlocks * kSlotsPerBlock;
// Query rows that share one pass over K and V: what their scores of one run may take of the
// second-level cache (96 KiB).
inline constexpr uint32_t kTileRows = 48;

// Where one head's K and V of one layer lie. In latent form they are one: both come from the row
// of a slot (LatentForm), the first of which is at k_offset.
struct KvHead {
  const std::byte* slab = nullptr;
  size_t block_stride = 0;
  size_t k_offset = 0;  // within a block: [dim][slot], then the scales of FP8 [slot]
  size_t v_offset = 0;  // within a block: [slot][dim], then the scales of FP8 [slot]
  ElementType type = ElementType::kF32;
  uint32_t key_dim = 0;  // of a query too
  uint32_t value_dim = 0;
  bool latent = false;
};

// Consecutive tokens of a sequence, with query heads that share one KV head (all of them, or some
// where they are many). Row token * group_heads + head is one query.
struct QueryTile {
  const float* q = nullptr;  // of the first token, first head; heads are key_dim apart
  size_t token_stride = 0;
  uint32_t num_tokens = 0;
  uint32_t group_heads = 0;
  uint32_t first_position = 0;
  const uint32_t* block_table = nullptr;
  float scale = 1.0f;  // of the scores, as a rule 1 / sqrt(key_dim)

  uint32_t num_rows() const { return num_tokens * group_heads; }
};

// Query heads that share a KV head are cut into groups of at most kTileRows, as even as may be.
inline uint32_t num_head_groups(uint32_t num_heads) {
  return (num_heads + kTileRows - 1) / kTileRows;
}
// Tokens in a tile of a group of query heads.
inline uint32_t tile_tokens(uint32_t group_heads) {
  return group_heads < kTileRows ? kTileRows / group_heads : 1;
}
// Runs that a query at this position looks at.
inline uint32_t num_runs(uint32_t position) { return position / kRunSlots + 1; }

// The outcome over some runs: per row the maximum, the sum and the unnormalised values.
struct AttentionState {
  float* max = nullptr;     // [row]
  float* sum = nullptr;     // [row]
  float* values = nullptr;  // [row][value_dim]
};

// Layout of an AttentionState in one piece of memory.
inline size_t attention_state_floats(uint32_t num_rows, uint32_t value_dim) {
  return size_t{num_rows} * (value_dim + 2);
}
AttentionState attention_state(float* memory, uint32_t num_rows, uint32_t value_dim);

// Floats of scratch that `attend` needs for a tile of num_rows rows.
size_t attention_scratch_floats(uint32_t num_rows, uint32_t key_dim, uint32_t value_dim);

struct RunRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Computes the runs of the range and merges them, in order, into `state` (which it overwrites).
// Every row must see at least one slot of the first run. Where the runs of a row are split, each
// range but the first is one run: merging is in order, run by run, and not associative.
void attend(const AttentionKernels& kernels, const QueryTile& tile, const KvHead& kv, RunRange runs,
            const AttentionState& state, float* scratch);

// Merges one row's next runs into its earlier ones.
void merge_row(const AttentionState& into, const AttentionState& next, uint32_t row,
               uint32_t value_dim);

// out[dim] = values[dim] / sum.
void finish_row(const AttentionState& state, uint32_t row, uint32_t value_dim, float* out);

}  // namespace crossdock::kernels
