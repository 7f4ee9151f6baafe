// One step's batch, flattened into rows, and its attention cut into tasks. Pure bookkeeping: how
// the work is cut never changes a result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/kernels/attention.h"
#include "crossdock/model/executor.h"

namespace crossdock {

// Query heads that share a KV head, cut into groups that attend together.
struct HeadGroups {
  uint32_t num_kv_heads = 0;
  uint32_t shared_heads = 0;  // query heads of a KV head
  uint32_t num_groups = 0;    // of a KV head

  uint32_t num_units() const { return num_kv_heads * num_groups; }
  uint32_t kv_head(uint32_t unit) const { return unit / num_groups; }
  uint32_t begin(uint32_t unit) const {
    return kv_head(unit) * shared_heads + shared_heads * (unit % num_groups) / num_groups;
  }
  uint32_t size(uint32_t unit) const { return begin(unit + 1) - begin(unit); }
  uint32_t size_max() const { return (shared_heads + num_groups - 1) / num_groups; }
};

// Latent attention has one KV head for all: its heads are cut for the threads' sake too.
HeadGroups head_groups(const ModelConfig& config, uint32_t num_threads);

// Where one row's K and V go.
struct RowPlace {
  int32_t token = 0;
  uint32_t position = 0;
  BlockId block = 0;
};

// A tile of rows of one sequence, for every group of heads. A split task covers one run alone and
// leaves its state in the partial states' slot `partial`; the others finish their rows.
struct AttentionTask {
  uint32_t first_row = 0;
  uint32_t num_tokens = 0;
  uint32_t first_position = 0;
  const BlockId* block_table = nullptr;
  kernels::RunRange runs;
  bool split = false;
  uint32_t partial = 0;
};

// The partial states of one split row: slots [first_partial, first_partial + num_partials).
struct SplitRow {
  uint32_t row = 0;
  uint32_t first_partial = 0;
  uint32_t num_partials = 0;
};

// Rows of a prompt that attend in MLA's expanded form: one after the other, from `first_row` on.
struct PromptRows {
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  uint32_t first_position = 0;
  const BlockId* block_table = nullptr;
};

struct RowRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t size() const { return end - begin; }
};

// Rows that look back over the cache, and how: the prompts' in the expanded form, all others by
// tasks, on what is cached.
struct RowSet {
  std::vector<RowPlace> rows;
  std::vector<PromptRows> prompts;
  std::vector<RowRange> task_rows;  // those of the tasks, in order
  std::vector<AttentionTask> tasks;
  std::vector<SplitRow> splits;
  uint32_t num_partials = 0;

  uint32_t num_rows() const { return static_cast<uint32_t>(rows.size()); }
  void clear();
};

struct BatchPlan {
  RowSet all;
  // Those that want logits, in batch order: past the last layer's K and V nobody needs the others.
  RowSet last;
  std::vector<uint32_t> logit_rows;  // of the last set's rows, their indices in all

  bool last_is_all() const { return last.rows.size() == all.rows.size(); }

  struct Limits {
    uint32_t context_tokens_max = 0;
    uint32_t vocab_size = 0;
    uint32_t num_blocks = 0;
    uint32_t num_threads = 0;
    bool expands_prompts = false;
  };
  // Asserts that tokens, positions and block tables are in range. Keeps its memory between calls.
  void build(std::span<const BatchItem> batch, const Limits& limits, const HeadGroups& groups);

 private:
  void add_rows(const BatchItem& item, const Limits& limits);
};

}  // namespace crossdock
