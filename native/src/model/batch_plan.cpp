#include "batch_plan.h"

#include <algorithm>
#include <cassert>

namespace crossdock {
namespace {

struct TaskRule {
  uint32_t tile_tokens = 0;
  bool may_split = false;
  bool expands_prompts = false;
};

// The last `num_tokens` tokens of the item, whose rows begin at first_row of the set.
void add_tasks(const BatchItem& item, uint32_t num_tokens, uint32_t first_row, const TaskRule& rule,
               RowSet& set) {
  const auto end = static_cast<uint32_t>(item.first_position + item.tokens.size());
  const uint32_t first_position = end - num_tokens;
  const uint32_t runs = kernels::num_runs(end - 1);
  if (set.task_rows.empty() || set.task_rows.back().end != first_row) {
    set.task_rows.push_back({first_row, first_row});
  }
  set.task_rows.back().end += num_tokens;
  if (rule.may_split && num_tokens == 1 && runs > 1) {
    set.splits.push_back({first_row, set.num_partials, runs});
    for (uint32_t run = 0; run < runs; ++run) {
      set.tasks.push_back({first_row,
                           1,
                           first_position,
                           item.block_table.data(),
                           {run, run + 1},
                           true,
                           set.num_partials++});
    }
    return;
  }
  for (uint32_t done = 0; done < num_tokens; done += rule.tile_tokens) {
    const uint32_t tokens = std::min(rule.tile_tokens, num_tokens - done);
    const uint32_t position = first_position + done;
    set.tasks.push_back({first_row + done,
                         tokens,
                         position,
                         item.block_table.data(),
                         {0, kernels::num_runs(position + tokens - 1)},
                         false,
                         0});
  }
}

// The same, those of the prompt apart where they are expanded.
void add_attention(const BatchItem& item, uint32_t num_tokens, uint32_t first_row,
                   const TaskRule& rule, RowSet& set) {
  const auto end = static_cast<uint32_t>(item.first_position + item.tokens.size());
  const uint32_t first_position = end - num_tokens;
  const uint32_t num_prompt = rule.expands_prompts && item.first_generated > first_position
                                  ? std::min(item.first_generated - first_position, num_tokens)
                                  : 0;
  if (num_prompt > 0) {
    set.prompts.push_back({first_row, num_prompt, first_position, item.block_table.data()});
  }
  if (num_prompt == num_tokens) return;
  add_tasks(item, num_tokens - num_prompt, first_row + num_prompt, rule, set);
}

}  // namespace

HeadGroups head_groups(const ModelConfig& config, uint32_t num_threads) {
  HeadGroups groups{config.num_kv_heads, config.num_heads / config.num_kv_heads, 0};
  const bool mla = config.attention == ModelConfig::Attention::kMla;
  groups.num_groups = std::max(kernels::num_head_groups(groups.shared_heads),
                               mla ? std::min(num_threads, groups.shared_heads) : 1);
  return groups;
}

void RowSet::clear() {
  rows.clear();
  prompts.clear();
  task_rows.clear();
  tasks.clear();
  splits.clear();
  num_partials = 0;
}

void BatchPlan::build(std::span<const BatchItem> batch, const Limits& limits,
                      const HeadGroups& groups) {
  all.clear();
  last.clear();
  logit_rows.clear();
  // One stream alone gives fewer tasks than keep the threads even: then its runs are split too.
  const TaskRule rule{
      kernels::tile_tokens(groups.size_max()),
      limits.num_threads > 1 && batch.size() * groups.num_units() < 4 * limits.num_threads,
      limits.expands_prompts};
  for (const auto& item : batch) {
    const uint32_t first_row = all.num_rows();
    add_rows(item, limits);
    add_attention(item, static_cast<uint32_t>(item.tokens.size()), first_row, rule, all);
    if (!item.wants_logits) continue;
    add_attention(item, 1, last.num_rows(), rule, last);
    logit_rows.push_back(all.num_rows() - 1);
    last.rows.push_back(all.rows.back());
  }
}

void BatchPlan::add_rows(const BatchItem& item, const Limits& limits) {
  const size_t end = item.first_position + item.tokens.size();
  assert(!item.tokens.empty() && end <= limits.context_tokens_max);
  assert(item.block_table.size() * kBlockTokens >= end);
  for (size_t i = 0; i < item.tokens.size(); ++i) {
    const auto position = static_cast<uint32_t>(item.first_position + i);
    const BlockId block = item.block_table[position / kBlockTokens];
    assert(item.tokens[i] >= 0 && static_cast<uint32_t>(item.tokens[i]) < limits.vocab_size);
    assert(block < limits.num_blocks);
    all.rows.push_back({item.tokens[i], position, block});
  }
}

}  // namespace crossdock
