// One sequence as the scheduler keeps it: a slot of a dense array.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/sched/scheduler.h"

namespace crossdock {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

constexpr uint32_t blocks_for(size_t num_tokens) {
  return static_cast<uint32_t>((num_tokens + kBlockTokens - 1) / kBlockTokens);
}

// What a step touches comes first, so that it is one cache line a sequence.
struct alignas(64) Sequence {
  SequenceId id = 0;
  uint64_t arrival = 0;  // orders everything: plans, the queue, preemption
  uint32_t num_computed = 0;
  uint32_t num_prompt = 0;
  uint32_t num_tokens_max = 0;  // prompt and generated
  uint32_t num_published = 0;   // leading whole blocks that the tree has seen
  SequenceRole role = SequenceRole::kLocal;
  SequenceState state = SequenceState::kWaiting;
  bool living = false;   // its id is known; false: the slot is free or awaits its last step's end
  bool in_plan = false;  // the executor may be touching its blocks until step_done
  bool ended = false;    // no more tokens are wanted; the caller is about to finish it
  bool awaits_load = false;
  bool awaits_grant = false;
  bool revoking = false;  // a reserved target that a plan has asked to be revoked
  bool was_admitted = false;
  bool was_preempted = false;
  uint32_t num_matched = 0;   // leading blocks that were found in the tree
  uint32_t num_loadable = 0;  // leading blocks that the outer tier or the peer can deliver
  uint32_t num_cached_tokens = 0;
  uint32_t previous = kNoSlot;  // links of the waiting queue
  uint32_t next = kNoSlot;
  uint32_t first_generated = UINT32_MAX;
  BlockHash root;
  std::vector<int32_t> tokens;
  std::vector<BlockId> table;
  std::vector<BlockHash> chain;

  uint32_t num_tokens() const { return static_cast<uint32_t>(tokens.size()); }
  // Blocks that a match may cover: the last known token is always computed, for its logits.
  uint32_t num_matchable() const { return (num_tokens() - 1) / kBlockTokens; }
  std::span<const BlockId> unmatched() const { return std::span(table).subspan(num_matched); }
  // The blocks that it holds references of: a quarantine took over the others.
  std::span<const BlockId> referenced() const {
    return std::span(table).first(living && state == SequenceState::kQuarantined ? num_matched
                                                                                 : table.size());
  }
  bool is_runnable() const { return state == SequenceState::kRunning && !ended; }
  bool is_decode() const {
    return is_runnable() && num_computed + 1 == num_tokens() && num_tokens() > num_prompt;
  }
  // Admitted, with nothing to load yet.
  bool is_held() const { return state == SequenceState::kLoading && num_loadable == 0; }
  bool can_grow() const { return role != SequenceRole::kSource; }
};

}  // namespace crossdock
