#include "batch_plan.h"

#include <algorithm>
#include <cassert>

namespace crossdock {

void BatchPlan::build(std::span<const BatchItem> batch, const ModelConfig& config,
                      uint32_t num_blocks, uint32_t num_threads) {
  rows.clear();
  logit_rows.clear();
  tasks.clear();
  splits.clear();
  num_partials = 0;
  const uint32_t group_heads = config.num_heads / config.num_kv_heads;
  // One stream alone gives fewer tasks than keep the threads even: then its runs are split too.
  const bool may_split = num_threads > 1 && batch.size() * config.num_kv_heads < 4 * num_threads;
  for (const auto& item : batch) {
    const auto first_row = static_cast<uint32_t>(rows.size());
    add_rows(item, config, num_blocks);
    add_tasks(item, first_row, group_heads, may_split);
    if (item.wants_logits) logit_rows.push_back(static_cast<uint32_t>(rows.size()) - 1);
  }
}

void BatchPlan::add_rows(const BatchItem& item, const ModelConfig& config, uint32_t num_blocks) {
  const size_t end = item.first_position + item.tokens.size();
  assert(!item.tokens.empty() && end <= config.context_tokens_max);
  assert(item.block_table.size() * kBlockTokens >= end);
  for (size_t i = 0; i < item.tokens.size(); ++i) {
    const auto position = static_cast<uint32_t>(item.first_position + i);
    const BlockId block = item.block_table[position / kBlockTokens];
    assert(item.tokens[i] >= 0 && static_cast<uint32_t>(item.tokens[i]) < config.vocab_size);
    assert(block < num_blocks);
    rows.push_back({item.tokens[i], position, block});
  }
  static_cast<void>(num_blocks);
}

void BatchPlan::add_tasks(const BatchItem& item, uint32_t first_row, uint32_t group_heads,
                          bool may_split) {
  const auto num_tokens = static_cast<uint32_t>(item.tokens.size());
  const uint32_t runs = kernels::num_runs(item.first_position + num_tokens - 1);
  if (may_split && num_tokens == 1 && runs > 1) {
    splits.push_back({first_row, num_partials, runs});
    for (uint32_t run = 0; run < runs; ++run) {
      tasks.push_back({first_row,
                       1,
                       item.first_position,
                       item.block_table.data(),
                       {run, run + 1},
                       true,
                       num_partials++});
    }
    return;
  }
  const uint32_t tile = kernels::tile_tokens(group_heads);
  for (uint32_t done = 0; done < num_tokens; done += tile) {
    const uint32_t tokens = std::min(tile, num_tokens - done);
    const uint32_t position = item.first_position + done;
    tasks.push_back({first_row + done,
                     tokens,
                     position,
                     item.block_table.data(),
                     {0, kernels::num_runs(position + tokens - 1)},
                     false,
                     0});
  }
}

}  // namespace crossdock
