// One step's batch, flattened into rows, and its attention cut into tasks. Pure bookkeeping: how
// the work is cut never changes a result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/kernels/attention.h"
#include "crossdock/model/executor.h"

namespace crossdock {

// Where one row's K and V go.
struct RowPlace {
  int32_t token = 0;
  uint32_t position = 0;
  BlockId block = 0;
};

// A tile of rows of one sequence, for every KV head. A split task covers one run alone and leaves
// its state in the partial states' slot `partial`; the others finish their rows.
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

struct BatchPlan {
  std::vector<RowPlace> rows;
  std::vector<uint32_t> logit_rows;  // in batch order
  std::vector<AttentionTask> tasks;
  std::vector<SplitRow> splits;
  uint32_t num_partials = 0;

  // Asserts that tokens, positions and block tables are in range. Keeps its memory between calls.
  void build(std::span<const BatchItem> batch, const ModelConfig& config, uint32_t num_blocks,
             uint32_t num_threads);

 private:
  void add_rows(const BatchItem& item, const ModelConfig& config, uint32_t num_blocks);
  void add_tasks(const BatchItem& item, uint32_t first_row, uint32_t group_heads, bool may_split);
};

}  // namespace crossdock
