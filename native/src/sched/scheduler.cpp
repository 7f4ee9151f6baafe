#include "crossdock/sched/scheduler.h"

#include <algorithm>
#include <cassert>

#include "scheduler_impl.h"

namespace crossdock {

void StepPlan::clear() {
  entries.clear();
  started.clear();
  loads.clear();
  preempted.clear();
  revoke.clear();
  num_decodes = 0;
}

Scheduler::Impl::Impl(const SchedulerConfig& c)
    : config(c), pool(c.num_blocks), tree(pool), queue(slots), pins(c.num_blocks) {
  assert(config.num_blocks > 0 && config.token_budget > 0 && config.num_sequences_max > 0);
  assert(config.context_tokens_max > 0);
  assert(0 < config.low_watermark && config.low_watermark <= config.high_watermark &&
         config.high_watermark <= 1);
  // Every running decode has its token in every step, so more of them than tokens make no sense.
  config.num_sequences_max = std::min(config.num_sequences_max, config.token_budget);
  high_blocks = static_cast<uint32_t>(config.high_watermark * config.num_blocks);
  low_blocks = static_cast<uint32_t>(config.low_watermark * config.num_blocks);
  quarantined_blocks_max = static_cast<uint32_t>(config.quarantine_max * config.num_blocks);
  const uint32_t n = config.num_sequences_max;
  for (auto* slots_of : {&running, &stalled, &closing}) slots_of->reserve(n);
  plan.entries.reserve(n);
  for (auto* ids : {&plan.started, &plan.preempted, &plan.revoke}) ids->reserve(n);
  plan.loads.reserve(n);
}

Status Scheduler::Impl::check_fits(SequenceId id, std::span<const int32_t> prompt,
                                   uint32_t max_new_tokens) const {
  const auto invalid = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  if (slot_by_id.contains(id)) {
    return {StatusCode::kAlreadyExists,
            "sequence " + std::to_string(id) + " is alive; choose an id that is not in use"};
  }
  if (prompt.empty()) return invalid("prompt: it is empty; send at least 1 token");
  if (max_new_tokens == 0) return invalid("max_new_tokens: 0; ask for at least 1");
  const uint64_t context = config.context_tokens_max;
  if (prompt.size() >= context) {
    return invalid("prompt: " + std::to_string(prompt.size()) + " tokens; the context holds " +
                   std::to_string(context) + ", one of them generated");
  }
  const uint64_t total = prompt.size() + uint64_t{max_new_tokens};
  if (total > context) {
    return invalid("max_new_tokens: " + std::to_string(max_new_tokens) + " after a prompt of " +
                   std::to_string(prompt.size()) + " tokens; the context holds " +
                   std::to_string(context));
  }
  // The last token is never computed, so it needs no slot.
  if (blocks_for(total - 1) > config.num_blocks) {
    const bool prompt_alone = blocks_for(prompt.size()) > config.num_blocks;
    return invalid(std::string(prompt_alone ? "prompt" : "max_new_tokens") +
                   ": the request needs " + std::to_string(blocks_for(total - 1)) +
                   " blocks; the pool has " + std::to_string(config.num_blocks));
  }
  return {};
}

uint32_t Scheduler::Impl::slot_of(SequenceId id) const {
  const auto it = slot_by_id.find(id);
  assert(it != slot_by_id.end() && "no such sequence");
  return it->second;
}

uint32_t Scheduler::Impl::open_slot(SequenceId id, SequenceRole role,
                                    std::span<const int32_t> prompt, uint32_t max_new_tokens,
                                    const BlockHash& root, uint32_t first_generated) {
  if (free_slots.empty()) {
    free_slots.push_back(static_cast<uint32_t>(slots.size()));
    slots.emplace_back();
    closing.reserve(slots.size());
  }
  const uint32_t slot = free_slots.back();
  free_slots.pop_back();
  Sequence& s = slots[slot];
  assert(!s.living && s.table.empty());
  s.id = id;
  s.arrival = ++num_arrivals;
  s.num_computed = s.num_published = s.num_matched = s.num_loadable = s.num_cached_tokens = 0;
  s.num_prompt = static_cast<uint32_t>(prompt.size());
  s.num_tokens_max = s.num_prompt + max_new_tokens;
  s.role = role;
  s.state = SequenceState::kWaiting;
  s.living = true;
  s.ended = s.awaits_load = s.awaits_grant = s.revoking = s.was_admitted = s.was_preempted = false;
  s.root = root;
  s.first_generated = first_generated;
  // Room for the whole life, so that no step allocates.
  s.tokens.clear();
  s.tokens.reserve(s.num_tokens_max);
  s.tokens.insert(s.tokens.end(), prompt.begin(), prompt.end());
  s.table.reserve(blocks_for(s.num_tokens_max));
  s.chain.clear();
  s.chain.reserve(s.num_tokens_max / kBlockTokens);
  extend_chain(s.root, s.tokens, s.first_generated, s.chain);
  slot_by_id.emplace(id, slot);
  return slot;
}

void Scheduler::Impl::close_slot(uint32_t slot) {
  Sequence& s = slots[slot];
  release_blocks(s);
  free_slots.push_back(slot);
}

void Scheduler::Impl::release_blocks(Sequence& s) {
  // Backwards, so that whoever acquires them next has them in order: a run of blocks is one span.
  for (size_t i = s.table.size(); i-- > 0;) pool.unreference(s.table[i]);
  s.table.clear();
  s.num_computed = s.num_published = s.num_matched = 0;
}

void Scheduler::Impl::append_token(Sequence& s, int32_t token) {
  assert(s.num_tokens() < s.num_tokens_max);
  s.tokens.push_back(token);
  if (s.num_tokens() % kBlockTokens == 0)
    extend_chain(s.root, s.tokens, s.first_generated, s.chain);
  s.ended = s.num_tokens() == s.num_tokens_max;
}

void Scheduler::Impl::publish(Sequence& s, uint64_t tick) {
  const uint32_t num_full = s.num_computed / kBlockTokens;
  if (num_full <= s.num_published) return;
  tree.insert(std::span(s.chain).first(num_full), std::span(s.table).first(num_full), tick);
  s.num_published = num_full;
}

void Scheduler::Impl::start_running(uint32_t slot) {
  Sequence& s = slots[slot];
  s.state = SequenceState::kRunning;
  num_growing += s.can_grow();
  auto place = running.end();
  while (place != running.begin() && slots[*(place - 1)].arrival > s.arrival) --place;
  running.insert(place, slot);
}

void Scheduler::Impl::stop_running(uint32_t slot) {
  const Sequence& s = slots[slot];
  num_growing -= s.can_grow();
  const auto place = std::lower_bound(
      running.begin(), running.end(), s.arrival,
      [&](uint32_t other, uint64_t arrival) { return slots[other].arrival < arrival; });
  assert(place != running.end() && *place == slot);
  running.erase(place);
}

void Scheduler::Impl::leave_reserved(Sequence& s) {
  assert(s.state == SequenceState::kReserved);
  --num_reserved;
  if (s.revoking) {
    --num_revoking;
    num_revoking_blocks -= static_cast<uint32_t>(s.unmatched().size());
  }
  s.revoking = false;
}

void Scheduler::Impl::end_plan() {
  for (const PlanEntry& entry : plan.entries) slots[entry.slot].in_plan = false;
  for (const uint32_t slot : closing) close_slot(slot);
  closing.clear();
  pending = false;
}

Scheduler::Scheduler(const SchedulerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::submit(Submission submission) {
  assert(submission.role != SequenceRole::kTarget);
  assert(submission.role == SequenceRole::kSource || !submission.awaits_grant);
  const uint32_t max_new_tokens =
      submission.role == SequenceRole::kSource ? 1 : submission.max_new_tokens;
  Status status = impl_->check_fits(submission.id, submission.prompt, max_new_tokens);
  if (!status.ok()) return status;
  const uint32_t slot =
      impl_->open_slot(submission.id, submission.role, submission.prompt, max_new_tokens,
                       submission.root, submission.first_generated);
  impl_->slots[slot].awaits_grant = submission.awaits_grant;
  if (submission.awaits_load) {
    impl_->slots[slot].awaits_load = true;
    ++impl_->num_awaiting;
  } else {
    impl_->queue.insert(slot);
    impl_->changed = true;
  }
  return {};
}

void Scheduler::load_ready(SequenceId id, uint32_t num_blocks) {
  if (!contains(id)) return;  // cancelled while the outer tier was asked
  const uint32_t slot = impl_->slot_of(id);
  Sequence& s = impl_->slots[slot];
  assert(s.awaits_load);
  s.awaits_load = false;
  s.num_loadable = std::min(num_blocks, s.num_matchable());
  --impl_->num_awaiting;
  impl_->queue.insert(slot);
  impl_->changed = true;
}

std::optional<LoadOrder> Scheduler::load_more(SequenceId id, uint32_t num_blocks) {
  const uint32_t slot = impl_->slot_of(id);
  Sequence& s = impl_->slots[slot];
  assert(s.role == SequenceRole::kSource && num_blocks <= s.num_matchable());
  const bool free = s.state == SequenceState::kRunning && !s.in_plan;
  const uint32_t first = s.num_computed / kBlockTokens;
  if ((!free && !s.is_held()) || num_blocks <= first) return std::nullopt;
  if (free) {
    impl_->stop_running(slot);
    s.state = SequenceState::kLoading;
    ++impl_->num_loading;
  }
  s.num_loadable = num_blocks;
  impl_->changed = true;
  return LoadOrder{id, first, num_blocks - first};
}

void Scheduler::loaded(SequenceId id, uint32_t num_blocks, uint64_t tick) {
  if (!contains(id)) return;  // cancelled after its reads were ordered
  const uint32_t slot = impl_->slot_of(id);
  Sequence& s = impl_->slots[slot];
  assert(s.state == SequenceState::kLoading);
  const uint32_t first = s.num_computed / kBlockTokens;
  assert(num_blocks == 0 || first + num_blocks <= s.num_loadable);
  --impl_->num_loading;
  // A block that was computed in part is read whole, or computed anew.
  const uint32_t before = s.num_computed;
  if (s.num_loadable > first) s.num_computed = (first + num_blocks) * kBlockTokens;
  s.num_cached_tokens += s.num_computed - std::min(before, s.num_computed);
  s.num_loadable = 0;
  impl_->publish(s, tick);
  impl_->start_running(slot);
  impl_->changed = true;
}

Status Scheduler::Impl::check_room(const Sequence& target, uint32_t num_needed) const {
  const auto exhausted = [](std::string message) {
    return Status(StatusCode::kResourceExhausted, std::move(message) + "; retry elsewhere");
  };
  if (pool.num_quarantined() > quarantined_blocks_max) {
    return exhausted("quarantine holds " + std::to_string(pool.num_quarantined()) +
                     " blocks, more than its bound of " + std::to_string(quarantined_blocks_max));
  }
  if (head_is_blocked) return exhausted("a sequence that came earlier waits for blocks");
  // The target is among the active and the reserved already.
  if (num_active() > config.num_sequences_max) {
    return exhausted("all " + std::to_string(config.num_sequences_max) + " sequences are taken");
  }
  const uint32_t left_over = headroom() - 1;
  if (num_needed + left_over > num_available()) {
    return exhausted("a prompt of " + std::to_string(target.num_prompt) + " tokens needs " +
                     std::to_string(num_needed) + " blocks beside one for each of " +
                     std::to_string(left_over) + " sequences; " + std::to_string(num_available()) +
                     " are to be had");
  }
  return {};
}

Result<Grant> Scheduler::reserve(Reservation reservation, uint64_t tick) {
  Impl& m = *impl_;
  Status status = m.check_fits(reservation.id, reservation.prompt, reservation.max_new_tokens);
  if (!status.ok()) return status;
  const uint32_t slot =
      m.open_slot(reservation.id, SequenceRole::kTarget, reservation.prompt,
                  reservation.max_new_tokens, reservation.root, reservation.first_generated);
  Sequence& s = m.slots[slot];
  s.state = SequenceState::kReserved;
  ++m.num_reserved;
  s.num_matched = m.tree.match(std::span(s.chain).first(s.num_matchable()), tick, s.table);
  const uint32_t num_needed = blocks_for(s.num_prompt) - s.num_matched;
  status = m.check_room(s, num_needed);
  if (status.ok() && !m.acquire(num_needed, s.table)) {
    status = {StatusCode::kResourceExhausted,
              "the cached blocks that could be evicted are in use; retry elsewhere"};
  }
  if (!status.ok()) {
    finish(reservation.id);
    return status;
  }
  s.num_published = s.num_matched;
  s.num_cached_tokens = s.num_matched * kBlockTokens;
  return Grant{s.num_matched, s.table};
}

void Scheduler::activate(SequenceId id, int32_t first_token, uint64_t tick) {
  const uint32_t slot = impl_->slot_of(id);
  Sequence& s = impl_->slots[slot];
  impl_->leave_reserved(s);
  s.was_admitted = true;
  s.num_computed = s.num_prompt;
  impl_->append_token(s, first_token);
  impl_->publish(s, tick);
  impl_->start_running(slot);
  impl_->changed = true;
}

void Scheduler::quarantine(SequenceId id) {
  Sequence& s = impl_->slots[impl_->slot_of(id)];
  impl_->leave_reserved(s);
  s.state = SequenceState::kQuarantined;
  // The peer may be reading the matched blocks, too; they stay referenced.
  for (const BlockId block : s.unmatched()) impl_->pool.quarantine(block);
  impl_->changed = true;
}

void Scheduler::end_quarantine(SequenceId id) {
  const uint32_t slot = impl_->slot_of(id);
  Sequence& s = impl_->slots[slot];
  assert(s.state == SequenceState::kQuarantined);
  for (const BlockId block : s.unmatched()) impl_->pool.release_quarantined(block);
  s.table.resize(s.num_matched);
  s.living = false;
  impl_->slot_by_id.erase(id);
  impl_->close_slot(slot);
  impl_->changed = true;
}

void Scheduler::finish(SequenceId id) {
  const uint32_t slot = impl_->slot_of(id);
  Sequence& s = impl_->slots[slot];
  switch (s.state) {
    case SequenceState::kWaiting:
      if (s.awaits_load) {
        --impl_->num_awaiting;
      } else {
        impl_->queue.remove(slot);
      }
      break;
    case SequenceState::kLoading: --impl_->num_loading; break;
    case SequenceState::kRunning: impl_->stop_running(slot); break;
    case SequenceState::kHeld: break;
    case SequenceState::kReserved: impl_->leave_reserved(s); break;
    case SequenceState::kQuarantined: assert(!"only end_quarantine ends a quarantine"); break;
  }
  s.living = false;
  impl_->slot_by_id.erase(id);
  // The executor may be writing into its blocks; they are not for others before the step ends.
  if (s.in_plan) {
    impl_->closing.push_back(slot);
  } else {
    impl_->close_slot(slot);
  }
  if (impl_->queue.empty()) impl_->head_is_blocked = false;
  impl_->changed = true;
}

const StepPlan& Scheduler::plan(uint64_t tick) {
  impl_->make_plan(tick);
  return impl_->plan;
}

void Scheduler::step_done(std::span<const TokenResult> results, uint64_t tick,
                          uint64_t duration_ticks) {
  Impl& m = *impl_;
  assert(m.pending);
  if (duration_ticks > 0) m.fit.observe(m.load, duration_ticks);
  size_t next_result = 0;
  for (uint32_t i = 0; i < m.plan.entries.size(); ++i) {
    const PlanEntry& entry = m.plan.entries[i];
    const bool has_result = next_result < results.size() && results[next_result].entry_index == i;
    const TokenResult result = has_result ? results[next_result++] : TokenResult{};
    Sequence& s = m.slots[entry.slot];
    if (!s.living) continue;
    assert(has_result == entry.wants_logits && "one result for each entry that wants logits");
    s.num_computed += entry.num_tokens;
    if (has_result) {
      m.append_token(s, result.token);
      s.ended |= result.finished;
    }
    m.publish(s, tick);
    if (has_result && s.role == SequenceRole::kSource) {
      m.stop_running(entry.slot);
      s.state = SequenceState::kHeld;
    }
  }
  assert(next_result == results.size() && "results are in the order of the entries");
  m.end_plan();
  m.changed = true;
}

bool Scheduler::awaits_grant(SequenceId id) const { return impl_->at(id).is_held(); }
bool Scheduler::contains(SequenceId id) const { return impl_->slot_by_id.contains(id); }
SequenceState Scheduler::state(SequenceId id) const { return impl_->at(id).state; }
std::span<const int32_t> Scheduler::tokens(SequenceId id) const { return impl_->at(id).tokens; }
std::span<const BlockId> Scheduler::block_table(SequenceId id) const { return impl_->at(id).table; }
uint32_t Scheduler::num_computed(SequenceId id) const { return impl_->at(id).num_computed; }
uint32_t Scheduler::num_cached_tokens(SequenceId id) const {
  return impl_->at(id).num_cached_tokens;
}
std::span<const BlockHash> Scheduler::chain(SequenceId id) const { return impl_->at(id).chain; }

double Scheduler::predicted_prompt_ticks(uint32_t first_position, uint32_t num_tokens) const {
  const StepTimeFit& fit = impl_->fit;
  return fit.predict(StepLoad{}.with_chunk(first_position, num_tokens)) - fit.predict({});
}

uint32_t Scheduler::num_running() const { return static_cast<uint32_t>(impl_->running.size()); }
uint32_t Scheduler::quarantined_blocks_max() const { return impl_->quarantined_blocks_max; }
uint32_t Scheduler::num_waiting() const { return impl_->queue.size() + impl_->num_awaiting; }
bool Scheduler::idle() const {
  if (!impl_->closing.empty()) return false;  // the end of their step gives blocks back
  return !impl_->changed || (impl_->running.empty() && impl_->queue.empty());
}
const BlockPool& Scheduler::pool() const { return impl_->pool; }
const PrefixTree& Scheduler::tree() const { return impl_->tree; }

void Scheduler::pin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    impl_->pool.reference(block);
    ++impl_->pins[block];
    ++impl_->num_pins;
  }
}

void Scheduler::unpin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    assert(impl_->pins[block] > 0);
    --impl_->pins[block];
    --impl_->num_pins;
    impl_->pool.unreference(block);
  }
  impl_->changed = true;
}

}  // namespace crossdock
