// How one step is planned.
//
// 1. Above the high watermark the tree evicts down to the low one, so that the blocks a step needs
//    are usually free.
// 2. Every running decode gets its token, in arrival order, and its next block where it needs one.
// 3. What is left of the token budget goes to the chunks of running sequences, in arrival order:
//    they hold blocks, so they never wait behind the queue, which holds none. Under a bound on the
//    step's time they share what is left of that, too. The first has at least a block, so the
//    oldest prompt gets on whatever the bound; a chunk that does not end its prompt ends with a
//    block, since a partial one cannot be sent or cached.
// 4. The queue is admitted from its front. A sequence is admitted only with the blocks of all its
//    known tokens, so a half-computed prompt never waits for a block, and several of them can
//    never hold the pool against one another. The first that does not fit ends the admission:
//    nobody overtakes it.
//
// Only a decode can lack a block, then. What it can be given, in this order: an evicted block; one
// that is already on its way back (a quarantine that ends, a grant that is being revoked: the
// newest grant is, once a step); those of the newest sequence that may be preempted, which is the
// last in the order of service; one a step. While blocks are on their way back and others make
// progress, nobody is preempted.
#include <algorithm>
#include <cassert>

#include "scheduler_impl.h"

namespace crossdock {

void Scheduler::Impl::make_plan(uint64_t tick) {
  if (pending) end_plan();  // a step that failed: nothing of it counts
  plan.clear();
  load = {};
  stalled.clear();
  has_revoked = false;
  tokens_left = config.token_budget;
  evict_to_low_watermark();
  plan_decodes();
  plan_chunks();
  if (plan.empty() && !stalled.empty()) break_standstill();
  // Blocks that a preemption freed are for those that lacked them; admission waits a step.
  if (stalled.empty() && plan.preempted.empty()) admit_queue(tick);
  const auto arrives_earlier = [&](const PlanEntry& a, const PlanEntry& b) {
    return slots[a.slot].arrival < slots[b.slot].arrival;
  };
  std::sort(plan.entries.begin() + plan.num_decodes, plan.entries.end(), arrives_earlier);
  pending = !plan.empty();
  changed = pending || !plan.preempted.empty();
}

void Scheduler::Impl::evict_to_low_watermark() {
  const uint32_t num_used = pool.num_blocks() - pool.num_free();
  if (num_used > high_blocks) tree.evict(num_used - low_blocks);
}

bool Scheduler::Impl::acquire(uint32_t count, std::vector<BlockId>& table) {
  if (pool.num_free() < count) tree.evict(count - pool.num_free());
  return pool.acquire(count, table);
}

void Scheduler::Impl::add_entry(uint32_t slot, uint32_t num_tokens) {
  Sequence& s = slots[slot];
  assert(0 < num_tokens && (num_tokens <= tokens_left || !config.chunked_prefill));
  assert(blocks_for(s.num_computed + num_tokens) <= s.table.size());
  const bool wants_logits = s.num_computed + num_tokens == s.num_tokens();
  plan.entries.push_back({s.id, slot, s.num_computed, num_tokens, wants_logits, s.first_generated});
  s.in_plan = true;
  tokens_left -= std::min(tokens_left, num_tokens);
}

void Scheduler::Impl::plan_decodes() {
  for (size_t i = 0; i < running.size();) {
    const uint32_t slot = running[i];
    if (slots[slot].is_decode() && !plan_decode(slot)) relieve(slot);
    // A preemption takes itself or somebody behind it off the list.
    i += i < running.size() && running[i] == slot;
  }
  if (!stalled.empty()) serve_stalled();
}

// False where it needs a block and eviction yields none.
bool Scheduler::Impl::plan_decode(uint32_t slot) {
  Sequence& s = slots[slot];
  const bool needs_block = s.num_computed == s.table.size() * kBlockTokens;
  if (needs_block && !acquire(1, s.table)) return false;
  add_entry(slot, 1);
  ++plan.num_decodes;
  ++load.num_decodes;
  return true;
}

// Looks for a block for a decode that eviction could not serve.
void Scheduler::Impl::relieve(uint32_t slot) {
  if (stalled.size() >= num_returning() && !has_revoked) revoke_newest_grant();
  const uint32_t victim = newest_preemptable();
  const bool waits = stalled.size() < num_returning() || !plan.preempted.empty() ||
                     (victim == slot && num_growing == 1 && others_hold_blocks(slot));
  if (!waits) preempt(victim);
  if (waits || (victim != slot && !plan_decode(slot))) stalled.push_back(slot);
}

// Tries again for those that stalled before the preemption, which may have freed more than one.
void Scheduler::Impl::serve_stalled() {
  std::erase_if(stalled, [&](uint32_t slot) {
    return slots[slot].state != SequenceState::kRunning || plan_decode(slot);
  });
  std::sort(plan.entries.begin(), plan.entries.end(), [&](const PlanEntry& a, const PlanEntry& b) {
    return slots[a.slot].arrival < slots[b.slot].arrival;
  });
}

// Nothing runs and some lack a block: now the newest gives way even if blocks are on their way.
// Alone, a sequence gives way only to itself: its own duplicates of cached blocks may fill the
// pool, and it shares those blocks when it comes back. Where anybody else holds blocks, they
// return by an event, and it waits for that.
void Scheduler::Impl::break_standstill() {
  const uint32_t victim = newest_preemptable();
  if (!plan.preempted.empty() || victim == kNoSlot) return;
  if (num_growing == 1 && others_hold_blocks(victim)) return;
  preempt(victim);
  serve_stalled();
}

void Scheduler::Impl::revoke_newest_grant() {
  if (num_revoking == num_reserved) return;
  Sequence* newest = nullptr;
  for (Sequence& s : slots) {
    const bool revocable = s.living && s.state == SequenceState::kReserved && !s.revoking;
    if (revocable && (newest == nullptr || s.arrival > newest->arrival)) newest = &s;
  }
  newest->revoking = true;
  ++num_revoking;
  num_revoking_blocks += static_cast<uint32_t>(newest->unmatched().size());
  plan.revoke.push_back(newest->id);
  has_revoked = true;
}

uint32_t Scheduler::Impl::newest_preemptable() const {
  for (size_t i = running.size(); i-- > 0;) {
    const Sequence& s = slots[running[i]];
    if (s.can_grow() && !s.ended) return running[i];
  }
  return kNoSlot;
}

bool Scheduler::Impl::others_hold_blocks(uint32_t slot) const {
  if (num_pins > 0) return true;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    if (i != slot && !slots[i].table.empty()) return true;
  }
  return false;
}

void Scheduler::Impl::preempt(uint32_t slot) {
  Sequence& s = slots[slot];
  stop_running(slot);
  release_blocks(s);
  s.state = SequenceState::kWaiting;
  s.was_preempted = true;
  queue.insert(slot);
  plan.preempted.push_back(s.id);
}

uint32_t Scheduler::Impl::chunk_max() const {
  if (plan.num_decodes > 64) return 512;
  if (plan.num_decodes > 32) return 1024;
  return 2048;
}

// Whether somebody new would get a chunk: of a block or more, beside others.
bool Scheduler::Impl::has_room() const {
  if (!has_chunk()) return tokens_left > 0;
  if (tokens_left < kBlockTokens) return false;
  return !config.chunked_prefill || config.step_ticks_max == 0 ||
         fit.keeps(load.with_chunk(0, kBlockTokens), config.step_ticks_max);
}

// Of the sequence's next chunk; 0 where it has to wait for the next step.
uint32_t Scheduler::Impl::chunk_tokens(const Sequence& s) const {
  const uint32_t num_left = s.num_tokens() - s.num_computed;
  if (!config.chunked_prefill) return num_left;
  uint32_t count = std::min({num_left, chunk_max(), tokens_left});
  if (config.step_ticks_max > 0) {
    const uint32_t least = has_chunk() ? 0 : std::min(count, kBlockTokens);
    count = std::max(least, fit.largest_chunk(load, s.num_computed, count, config.step_ticks_max));
  }
  if (count == num_left) return count;
  const uint32_t end = (s.num_computed + count) / kBlockTokens * kBlockTokens;
  if (end > s.num_computed) return end - s.num_computed;
  return has_chunk() ? 0 : count;
}

void Scheduler::Impl::plan_chunk(uint32_t slot) {
  const Sequence& s = slots[slot];
  const uint32_t count = chunk_tokens(s);
  if (count == 0) return;
  load = load.with_chunk(s.num_computed, count);
  add_entry(slot, count);
}

void Scheduler::Impl::plan_chunks() {
  for (const uint32_t slot : running) {
    if (tokens_left == 0) break;
    if (slots[slot].is_runnable() && !slots[slot].is_decode()) plan_chunk(slot);
  }
}

void Scheduler::Impl::admit_queue(uint64_t tick) {
  head_is_blocked = false;
  while (has_room() && !queue.empty() && num_active() < config.num_sequences_max) {
    const uint32_t slot = queue.front();
    if (!admit(slot, tick)) {
      head_is_blocked = true;
      break;
    }
    if (slots[slot].state == SequenceState::kRunning) plan_chunk(slot);
  }
}

bool Scheduler::Impl::admit(uint32_t slot, uint64_t tick) {
  Sequence& s = slots[slot];
  s.num_matched = tree.match(std::span(s.chain).first(s.num_matchable()), tick, s.table);
  const uint32_t num_needed = blocks_for(s.num_tokens()) - s.num_matched;
  if (num_needed + headroom() > num_available() || !acquire(num_needed, s.table)) {
    release_blocks(s);
    return false;
  }
  queue.remove(slot);
  s.num_published = s.num_matched;
  s.num_computed = s.num_matched * kBlockTokens;
  if (!s.was_admitted) s.num_cached_tokens = s.num_computed;
  s.was_admitted = true;
  plan.started.push_back(s.id);
  if (s.num_loadable > s.num_matched) {
    plan.loads.push_back({s.id, s.num_matched, s.num_loadable - s.num_matched});
  } else {
    s.num_loadable = 0;
  }
  if (s.num_loadable > 0 || s.awaits_grant) {
    s.state = SequenceState::kLoading;
    ++num_loading;
  } else {
    start_running(slot);
  }
  return true;
}

}  // namespace crossdock
