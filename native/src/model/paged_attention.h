// The attention of one step over the blocks of a slab, on all threads: for every kind of cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch_plan.h"
#include "crossdock/blocks/kv_layout.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/model/kv_convert.h"
#include "crossdock/sys/thread_pool.h"
#include "rows.h"

namespace crossdock {

class PagedAttention {
 public:
  PagedAttention(const kernels::Kernels& kernels, ThreadPool& pool, const KvLayout& layout,
                 const HeadGroups& groups, float scale);

  // Rows of `queries` hold every head's query in turn, those of `out` every head's weighted values.
  void run(const std::byte* slab, uint32_t layer, const RowSet& set, const Rows& queries,
           const Rows& out);

 private:
  kernels::KvHead kv_of(const std::byte* slab, uint32_t layer, uint32_t unit) const;
  void run_task(const AttentionTask& task, const kernels::KvHead& kv, uint32_t unit,
                const Rows& queries, const Rows& out, uint32_t thread);
  void merge_splits(const RowSet& set, const Rows& out);
  float* partial_state(uint32_t partial, uint32_t unit);

  const kernels::Kernels& kernels_;
  ThreadPool& pool_;
  const KvLayout& layout_;
  const HeadGroups groups_;
  const float scale_;
  const bool latent_;
  const uint32_t key_dim_;
  const uint32_t value_dim_;
  std::vector<std::vector<float>> thread_scratch_;
  std::vector<float> partials_;  // states of split rows: [partial][unit]
};

}  // namespace crossdock
