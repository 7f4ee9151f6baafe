#include "scheduler_world.h"

#include <algorithm>
#include <cstdlib>

namespace crossdock {
namespace {

constexpr uint64_t kGarbage = 0xdead;

int32_t token_after(uint64_t kv) { return static_cast<int32_t>(kv >> 40) % 7; }

}  // namespace

SchedulerWorld::SchedulerWorld(const SchedulerConfig& config)
    : config_(config), scheduler_(config), slots_(size_t{config.num_blocks} * kBlockTokens) {}

uint64_t SchedulerWorld::next_kv(uint64_t kv, int32_t token) {
  kv = (kv ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15ULL;
  return kv ^ (kv >> 29);
}

uint64_t& SchedulerWorld::kv(const std::vector<BlockId>& table, uint32_t position) {
  return slots_[size_t{table.at(position / kBlockTokens)} * kBlockTokens + position % kBlockTokens];
}

// Computes positions [begin, end); reads those before, as attention would.
void SchedulerWorld::fill(std::span<const int32_t> tokens, const std::vector<BlockId>& table,
                          uint32_t begin, uint32_t end) {
  uint64_t value = begin == 0 ? 1 : kv(table, begin - 1);
  for (uint32_t i = begin; i < end; ++i) {
    value = next_kv(value, tokens[i]);
    kv(table, i) = value;
  }
}

void SchedulerWorld::expect_kv(std::span<const int32_t> tokens, const std::vector<BlockId>& table,
                               uint32_t end) {
  uint64_t value = 1;
  for (uint32_t i = 0; i < end; ++i) {
    value = next_kv(value, tokens[i]);
    if (kv(table, i) == value) continue;
    FAIL() << "position " << i << " in block " << table[i / kBlockTokens] << " is not its own";
  }
}

void SchedulerWorld::check() { scheduler_.check(); }

bool SchedulerWorld::submit(Request request) {
  const Status status = scheduler_.submit({.id = request.id,
                                           .role = request.role,
                                           .prompt = request.prompt,
                                           .max_new_tokens = request.max_new_tokens,
                                           .awaits_load = request.awaits_load});
  check();
  if (!status.ok()) return false;
  if (request.role == SequenceRole::kSource) request.max_new_tokens = 1;
  request.order = ++num_arrivals_;
  requests_[request.id] = std::move(request);
  return true;
}

bool SchedulerWorld::reserve(Request request) {
  const Result<Grant> grant = scheduler_.reserve(
      {.id = request.id, .prompt = request.prompt, .max_new_tokens = request.max_new_tokens},
      tick_);
  check();
  if (!grant.ok()) {
    EXPECT_EQ(grant.status().code(), StatusCode::kResourceExhausted);
    return false;
  }
  request.granted = grant.value().blocks;
  request.num_matched = grant.value().num_matched_blocks;
  request.order = ++num_arrivals_;
  EXPECT_EQ(request.granted.size(), (request.prompt.size() + 31) / 32);
  EXPECT_LE(request.num_matched, (request.prompt.size() - 1) / 32);
  expect_kv(request.prompt, request.granted, request.num_matched * kBlockTokens);
  // Each running sequence keeps one block that it can have.
  EXPECT_GE(scheduler_.pool().num_free() + scheduler_.pool().num_cached_unreferenced(),
            std::count_if(requests_.begin(), requests_.end(), [&](const auto& other) {
              return state(other.first) == SequenceState::kRunning &&
                     other.second.role != SequenceRole::kSource;
            }));
  requests_[request.id] = std::move(request);
  return true;
}

void SchedulerWorld::write_grant(SequenceId id, bool garbage) {
  const Request& request = requests_.at(id);
  const auto num_prompt = static_cast<uint32_t>(request.prompt.size());
  if (!garbage) {
    fill(request.prompt, request.granted, request.num_matched * kBlockTokens, num_prompt);
    return;
  }
  for (uint32_t i = request.num_matched * kBlockTokens; i < num_prompt; ++i) {
    kv(request.granted, i) = kGarbage;
  }
}

void SchedulerWorld::load_ready(SequenceId id, uint32_t num_blocks) {
  requests_.at(id).awaits_load = false;
  scheduler_.load_ready(id, num_blocks);
  check();
}

void SchedulerWorld::finish_load(SequenceId id, uint32_t num_good) {
  Request& request = requests_.at(id);
  const LoadOrder order = *request.load;
  request.load.reset();
  const auto blocks = scheduler_.block_table(id);
  const std::vector<BlockId> table(blocks.begin(), blocks.end());
  for (uint32_t i = 0; i < order.num_blocks * kBlockTokens; ++i) {
    kv(table, order.first_block * kBlockTokens + i) = kGarbage;
  }
  fill(request.prompt, table, order.first_block * kBlockTokens,
       (order.first_block + num_good) * kBlockTokens);
  scheduler_.loaded(id, num_good, tick_);
  EXPECT_EQ(scheduler_.num_computed(id), (order.first_block + num_good) * kBlockTokens);
  check();
}

void SchedulerWorld::activate(SequenceId id) {
  Request& request = requests_.at(id);
  write_grant(id, false);
  const auto num_prompt = static_cast<uint32_t>(request.prompt.size());
  expect_kv(request.prompt, request.granted, num_prompt);
  const int32_t first = token_after(kv(request.granted, num_prompt - 1));
  scheduler_.activate(id, first, tick_);
  request.ended = request.max_new_tokens == 1;
  check();
}

void SchedulerWorld::quarantine(SequenceId id) {
  scheduler_.quarantine(id);
  check();
}

void SchedulerWorld::end_quarantine(SequenceId id) {
  write_grant(id, true);  // the last that may land
  const Request& request = requests_.at(id);
  expect_kv(request.prompt, request.granted, request.num_matched * kBlockTokens);
  scheduler_.end_quarantine(id);
  requests_.erase(id);
  check();
}

// Every token must be the one that follows from those before it.
void SchedulerWorld::check_tokens(const Request& request) {
  const auto tokens = scheduler_.tokens(request.id);
  ASSERT_GE(tokens.size(), request.prompt.size());
  ASSERT_TRUE(std::equal(request.prompt.begin(), request.prompt.end(), tokens.begin()));
  uint64_t value = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i >= request.prompt.size()) {
      ASSERT_EQ(tokens[i], token_after(value)) << "token " << i << " of sequence " << request.id;
    }
    value = next_kv(value, tokens[i]);
  }
}

void SchedulerWorld::finish(SequenceId id) {
  const Request& request = requests_.at(id);
  check_tokens(request);
  const SequenceState at_the_end = state(id);
  if (at_the_end == SequenceState::kHeld || at_the_end == SequenceState::kRunning) {
    // What a peer has read until now, or a write-back will have read, is all there.
    const auto blocks = scheduler_.block_table(id);
    expect_kv(scheduler_.tokens(id), {blocks.begin(), blocks.end()}, scheduler_.num_computed(id));
  }
  const auto num_generated = scheduler_.tokens(id).size() - request.prompt.size();
  if (request.ended) {
    EXPECT_EQ(num_generated, request.max_new_tokens);
    ++num_finished_;
  }
  scheduler_.finish(id);
  requests_.erase(id);
  check();
}

void SchedulerWorld::pin(SequenceId id) {
  const auto table = scheduler_.block_table(id);
  const uint32_t num_whole = scheduler_.num_computed(id) / kBlockTokens;
  pins_.emplace_back(table.begin(), table.begin() + num_whole);
  scheduler_.pin(pins_.back());
  check();
}

bool SchedulerWorld::unpin() {
  if (pins_.empty()) return false;
  scheduler_.unpin(pins_.front());
  pins_.erase(pins_.begin());
  check();
  return true;
}

void SchedulerWorld::plan() {
  waiting_before_.clear();
  running_before_.clear();
  for (const auto& [id, request] : requests_) {
    const bool waits = state(id) == SequenceState::kWaiting && !request.awaits_load;
    if (waits) waiting_before_.push_back(id);
    if (state(id) == SequenceState::kRunning && !request.ended) running_before_.push_back(id);
  }
  const auto key = [&](SequenceId id) {
    const Request& request = requests_.at(id);
    return std::pair(!request.was_preempted, request.order);
  };
  const auto earlier = [&](SequenceId a, SequenceId b) { return key(a) < key(b); };
  std::sort(waiting_before_.begin(), waiting_before_.end(), earlier);
  std::sort(running_before_.begin(), running_before_.end(), [&](SequenceId a, SequenceId b) {
    return requests_.at(a).order < requests_.at(b).order;
  });
  plan_ = scheduler_.plan(++tick_);
  pending_.clear();
  for (const PlanEntry& entry : plan_.entries) {
    const auto tokens = scheduler_.tokens(entry.id);
    const auto table = scheduler_.block_table(entry.id);
    pending_.push_back({entry,
                        requests_.at(entry.id).order,
                        {tokens.begin(), tokens.end()},
                        {table.begin(), table.end()}});
  }
  check();
  check_plan();
  check_preemption();
  check_admission();
  for (const LoadOrder& order : plan_.loads) requests_.at(order.id).load = order;
  for (const SequenceId id : plan_.revoke) requests_.at(id).revoke_asked = true;
  num_revocations_ += plan_.revoke.size();
  num_preemptions_ += plan_.preempted.size();
}

void SchedulerWorld::check_plan() {
  uint32_t num_tokens = 0;
  std::pair<bool, uint64_t> last{};
  const uint32_t num_decodes = plan_.num_decodes;
  const uint32_t chunk_max = num_decodes > 64 ? 512 : num_decodes > 32 ? 1024 : 2048;
  for (uint32_t i = 0; i < plan_.entries.size(); ++i) {
    const PlanEntry& entry = plan_.entries[i];
    const PendingEntry& pending = pending_[i];
    const Request& request = requests_.at(entry.id);
    const std::pair place(i >= num_decodes, request.order);
    EXPECT_TRUE(i == 0 || last < place) << "decodes first, each in arrival order";
    last = place;
    num_tokens += entry.num_tokens;
    EXPECT_GT(entry.num_tokens, 0u);
    if (config_.chunked_prefill) {
      EXPECT_LE(entry.num_tokens, chunk_max);
    } else if (i >= num_decodes) {
      EXPECT_TRUE(entry.wants_logits) << "a prompt is cut";
    }
    EXPECT_EQ(entry.first_position, scheduler_.num_computed(entry.id));
    const uint32_t end = entry.first_position + entry.num_tokens;
    ASSERT_LE(end, pending.tokens.size());
    EXPECT_EQ(entry.wants_logits, end == pending.tokens.size());
    EXPECT_GE(pending.table.size() * kBlockTokens, end);
    if (i < num_decodes) {
      EXPECT_EQ(entry.num_tokens, 1u);
    }
  }
  if (config_.chunked_prefill) {
    EXPECT_LE(num_tokens, config_.token_budget);
  }
  // Whoever runs is planned. A prompt may be left out where others have what there is of time and
  // tokens, to less than a block; a decode only for want of a block.
  const bool has_chunk = plan_.entries.size() > num_decodes;
  const bool is_spent = num_tokens + kBlockTokens > config_.token_budget ||
                        (config_.step_ticks_max > 0 && config_.chunked_prefill);
  for (const SequenceId id : running_before_) {
    if (state(id) != SequenceState::kRunning) continue;  // preempted
    const bool planned = std::any_of(plan_.entries.begin(), plan_.entries.end(),
                                     [&](const PlanEntry& entry) { return entry.id == id; });
    if (planned || num_tokens == config_.token_budget) continue;
    const auto num_prompt = static_cast<uint32_t>(requests_.at(id).prompt.size());
    const auto num_known = static_cast<uint32_t>(scheduler_.tokens(id).size());
    const bool decodes = num_known > num_prompt && scheduler_.num_computed(id) + 1 == num_known;
    if (!decodes && has_chunk && is_spent) continue;
    EXPECT_EQ(scheduler_.num_computed(id), scheduler_.block_table(id).size() * kBlockTokens);
    EXPECT_EQ(scheduler_.pool().num_free(), 0u) << "sequence " << id << " lacks a block";
  }
}

void SchedulerWorld::check_preemption() {
  EXPECT_LE(plan_.preempted.size(), 1u);
  EXPECT_LE(plan_.revoke.size(), 1u);
  for (const SequenceId id : plan_.preempted) {
    Request& victim = requests_.at(id);
    victim.was_preempted = true;
    EXPECT_NE(victim.role, SequenceRole::kSource);
    EXPECT_EQ(state(id), SequenceState::kWaiting);
    for (const SequenceId other : running_before_) {
      const Request& request = requests_.at(other);
      EXPECT_TRUE(request.role == SequenceRole::kSource || request.order <= victim.order)
          << other << " is newer than the preempted " << id;
    }
  }
  uint64_t newest = 0;
  for (const auto& [id, request] : requests_) {
    const bool grant = state(id) == SequenceState::kReserved && !request.revoke_asked;
    if (grant) newest = std::max(newest, request.order);
  }
  for (const SequenceId id : plan_.revoke) EXPECT_EQ(requests_.at(id).order, newest);
}

void SchedulerWorld::check_admission() {
  ASSERT_LE(plan_.started.size(), waiting_before_.size());
  for (size_t i = 0; i < plan_.started.size(); ++i) {
    EXPECT_EQ(plan_.started[i], waiting_before_[i]) << "admission is in order";
  }
  if (plan_.started.empty()) return;
  // The last admission left a block for each that may need one, itself not counted.
  uint32_t num_growing = 0;
  for (const auto& [id, request] : requests_) {
    const SequenceState now = state(id);
    num_growing += (now == SequenceState::kRunning || now == SequenceState::kReserved ||
                    now == SequenceState::kLoading) &&
                   request.role != SequenceRole::kSource;
  }
  const BlockPool& pool = scheduler_.pool();
  EXPECT_GE(pool.num_free() + pool.num_cached_unreferenced() + 1, num_growing);
}

bool SchedulerWorld::drain() {
  for (int round = 0; round < 10'000; ++round) {
    if (has_pending_step()) {
      complete_step();
    } else if (!scheduler_.idle()) {
      plan();
    } else if (requests_.empty()) {
      while (unpin()) {
      }
      const BlockPool& pool = scheduler_.pool();
      return pool.num_free() + pool.num_cached_unreferenced() == pool.num_blocks();
    }
    bool helped = has_pending_step() || !scheduler_.idle() || unpin();
    for (auto it = requests_.begin(); !helped && it != requests_.end();) {
      const SequenceId id = it->first;
      const Request& request = it->second;
      ++it;  // it may end here
      helped = true;
      switch (state(id)) {
        case SequenceState::kLoading: finish_load(id, request.load->num_blocks); break;
        case SequenceState::kHeld: finish(id); break;
        case SequenceState::kReserved: activate(id); break;
        case SequenceState::kQuarantined: end_quarantine(id); break;
        case SequenceState::kWaiting:
          helped = request.awaits_load;
          if (helped) load_ready(id, 0);
          break;
        case SequenceState::kRunning:
          helped = request.ended;
          if (helped) finish(id);
          break;
      }
    }
    if (!helped && !requests_.empty()) return false;
    if (testing::Test::HasFailure()) return false;
  }
  return false;
}

SchedulerWorld::Request* SchedulerWorld::request_of(const PendingEntry& pending) {
  const auto it = requests_.find(pending.entry.id);
  return it != requests_.end() && it->second.order == pending.order ? &it->second : nullptr;
}

void SchedulerWorld::complete_step() {
  std::vector<TokenResult> results;
  uint64_t duration = 20;
  for (uint32_t i = 0; i < pending_.size(); ++i) {
    const PendingEntry& p = pending_[i];
    const uint32_t begin = p.entry.first_position;
    const uint32_t end = begin + p.entry.num_tokens;
    // It reads and writes for the gone as well: it does not know that they are.
    expect_kv(p.tokens, p.table, begin);
    for (uint32_t b = begin / kBlockTokens; b <= (end - 1) / kBlockTokens; ++b) {
      EXPECT_EQ(scheduler_.pool().state(p.table[b]), BlockState::kOwned)
          << "block " << p.table[b] << " is written though it is not private";
    }
    fill(p.tokens, p.table, begin, end);
    num_computed_ += p.entry.num_tokens;
    duration += 5 * p.entry.num_tokens;
    if (!p.entry.wants_logits) continue;
    const Request* request = request_of(p);
    const bool finished = request != nullptr &&
                          p.tokens.size() + 1 == request->prompt.size() + request->max_new_tokens;
    results.push_back({i, token_after(kv(p.table, end - 1)), finished});
  }
  scheduler_.step_done(results, tick_, duration);
  for (const PendingEntry& p : pending_) {
    Request* request = request_of(p);
    if (request == nullptr || !p.entry.wants_logits) continue;
    const auto num_generated = scheduler_.tokens(request->id).size() - request->prompt.size();
    request->ended = num_generated == request->max_new_tokens;
  }
  pending_.clear();
  check();
}

}  // namespace crossdock
