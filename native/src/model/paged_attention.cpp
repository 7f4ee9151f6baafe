#include "paged_attention.h"

#include <algorithm>

namespace crossdock {

using kernels::KvHead;

PagedAttention::PagedAttention(const kernels::Kernels& kernels, ThreadPool& pool,
                               const KvLayout& layout, const HeadGroups& groups, float scale)
    : kernels_(kernels),
      pool_(pool),
      layout_(layout),
      groups_(groups),
      scale_(scale),
      latent_(layout.kind == KvKind::kMla),
      key_dim_(layout.head_dim + layout.rope_dim),
      value_dim_(layout.head_dim) {
  const uint32_t rows = std::max(groups.size_max(), kernels::kTileRows);
  const size_t size = kernels::attention_state_floats(rows, value_dim_) +
                      kernels::attention_scratch_floats(rows, key_dim_, value_dim_);
  thread_scratch_.assign(pool.num_threads(), std::vector<float>(size));
}

float* PagedAttention::partial_state(uint32_t partial, uint32_t unit) {
  const size_t unit_floats = kernels::attention_state_floats(groups_.size_max(), value_dim_);
  return partials_.data() + (size_t{partial} * groups_.num_units() + unit) * unit_floats;
}

KvHead PagedAttention::kv_of(const std::byte* slab, uint32_t layer, uint32_t unit) const {
  KvHead kv{.slab = slab,
            .block_stride = layout_.stride_bytes(),
            .type = element_type(layout_.dtype),
            .key_dim = key_dim_,
            .value_dim = value_dim_,
            .latent = latent_};
  if (latent_) {
    kv.k_offset = layout_.row_offset(layer, 0);
  } else {
    kv.k_offset = layout_.k_offset(layer, groups_.kv_head(unit));
    kv.v_offset = layout_.v_offset(layer, groups_.kv_head(unit));
  }
  return kv;
}

void PagedAttention::run(const std::byte* slab, uint32_t layer, const RowSet& set,
                         const Rows& queries, const Rows& out) {
  const uint32_t num_units = groups_.num_units();
  grow(partials_, size_t{set.num_partials} * num_units *
                      kernels::attention_state_floats(groups_.size_max(), value_dim_));
  const size_t num_tasks = set.tasks.size() * num_units;
  pool_.parallel_for(num_tasks, 1, [&](size_t begin, size_t end, uint32_t thread) {
    for (size_t i = begin; i < end; ++i) {
      const auto unit = static_cast<uint32_t>(i % num_units);
      // The last tasks of a long prompt are its longest: started first, the threads end together.
      const size_t index = set.tasks.size() - 1 - i / num_units;
      run_task(set.tasks[index], kv_of(slab, layer, unit), unit, queries, out, thread);
    }
  });
  merge_splits(set, out);
}

void PagedAttention::run_task(const AttentionTask& task, const KvHead& kv, uint32_t unit,
                              const Rows& queries, const Rows& out, uint32_t thread) {
  const uint32_t first_head = groups_.begin(unit), num_heads = groups_.size(unit);
  const kernels::QueryTile tile{.q = queries[task.first_row] + size_t{first_head} * key_dim_,
                                .token_stride = queries.stride,
                                .num_tokens = task.num_tokens,
                                .group_heads = num_heads,
                                .first_position = task.first_position,
                                .block_table = task.block_table,
                                .scale = scale_};
  const uint32_t num_rows = tile.num_rows();
  float* scratch = thread_scratch_[thread].data();
  float* memory = task.split ? partial_state(task.partial, unit) : scratch;
  const auto state = kernels::attention_state(memory, num_rows, value_dim_);
  kernels::attend(kernels_.attention, tile, kv, task.runs, state,
                  scratch + kernels::attention_state_floats(num_rows, value_dim_));
  if (task.split) return;
  for (uint32_t row = 0; row < num_rows; ++row) {
    const uint32_t head = first_head + row % num_heads;
    kernels::finish_row(state, row, value_dim_,
                        out[task.first_row + row / num_heads] + size_t{head} * value_dim_);
  }
}

void PagedAttention::merge_splits(const RowSet& set, const Rows& out) {
  const uint32_t num_units = groups_.num_units();
  const size_t num_merges = set.splits.size() * num_units;
  pool_.parallel_for(num_merges, 4, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i) {
      const SplitRow& split = set.splits[i / num_units];
      const auto unit = static_cast<uint32_t>(i % num_units);
      const uint32_t num_heads = groups_.size(unit);
      const auto state_of = [&](uint32_t index) {
        return kernels::attention_state(partial_state(split.first_partial + index, unit), num_heads,
                                        value_dim_);
      };
      float* values = out[split.row] + size_t{groups_.begin(unit)} * value_dim_;
      for (uint32_t row = 0; row < num_heads; ++row) {
        for (uint32_t n = 1; n < split.num_partials; ++n) {
          kernels::merge_row(state_of(0), state_of(n), row, value_dim_);
        }
        kernels::finish_row(state_of(0), row, value_dim_, values + size_t{row} * value_dim_);
      }
    }
  });
}

}  // namespace crossdock
