// Random worlds, driven until everything is finished. Each seed is a configuration and a workload;
// small pools make preemption, revocation and refusal the rule. Proves that every sequence that is
// not cancelled generates exactly its tokens, that nothing deadlocks or starves, and that
// everything drains.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "scheduler_world.h"

namespace crossdock {
namespace {

class Driver {
 public:
  using Request = SchedulerWorld::Request;

  explicit Driver(uint64_t seed)
      : random_(seed), config_(random_config()), world_(config_), cancels_(seed % 3 == 0) {
    for (int i = 0; i < 3; ++i) {
      documents_.emplace_back();
      for (int k = 0; k < 600; ++k) documents_.back().push_back(static_cast<int32_t>(pick(9)));
    }
  }

  void run() {
    uint32_t num_left = 60;
    uint64_t num_rounds = 0;
    while (num_left > 0 || !refused_.empty() || !world_.requests().empty() ||
           !world_.scheduler().idle()) {
      ASSERT_LT(++num_rounds, 100'000u) << "it does not come to an end";
      if (num_left > 0 && pick(3) == 0) {
        arrive();
        --num_left;
      }
      if (!refused_.empty() && (pick(4) == 0 || world_.requests().empty())) retry();
      const bool is_quiet = world_.scheduler().idle() && !world_.has_pending_step();
      // Where the scheduler has nothing to plan, only an event from outside can help.
      if (is_quiet && !world_.requests().empty()) {
        ASSERT_TRUE(outside_event(true)) << "everybody waits and nobody can run";
      } else if (pick(3) == 0) {
        outside_event(false);
      }
      if (world_.has_pending_step()) {
        if (pick(40) == 0) {
          world_.abandon_step();
        } else {
          world_.complete_step();
        }
      } else if (!world_.scheduler().idle()) {
        world_.plan();
      }
      if (testing::Test::HasFailure()) return;
    }
    while (world_.unpin()) {
    }
    const BlockPool& pool = world_.scheduler().pool();
    EXPECT_EQ(pool.num_owned(), 0u);
    EXPECT_EQ(pool.num_quarantined(), 0u);
    EXPECT_EQ(pool.num_cached_unreferenced(), pool.num_cached());
    EXPECT_TRUE(world_.scheduler().idle());
    if (!cancels_) {
      EXPECT_EQ(world_.num_finished() + num_lost_, 60u);
    }
    // Recomputation is bounded: without it, each token is computed once at most.
    EXPECT_LE(world_.num_computed(), 40 * num_tokens_wanted_);
  }

  const SchedulerWorld& world() const { return world_; }

 private:
  uint64_t pick(uint64_t count) { return random_() % count; }

  SchedulerConfig random_config() {
    SchedulerConfig config;
    config.num_blocks = 3 + static_cast<uint32_t>(pick(pick(2) ? 8 : 40));
    config.token_budget = std::vector<uint32_t>{5, 33, 64, 2048}[pick(4)];
    config.num_sequences_max = 1 + static_cast<uint32_t>(pick(9));
    config.context_tokens_max = 500;
    config.high_watermark = pick(2) ? 0.88 : 1.0;
    config.low_watermark = pick(2) ? 0.8 : 0.3;
    config.quarantine_max = pick(2) ? 0.25 : 1.0;
    config.chunked_prefill = pick(8) != 0;
    // A step takes 20 ticks, and 5 for a token: the bounds allow some tokens, one, none.
    config.step_ticks_max = std::vector<uint64_t>{0, 400, 25, 1}[pick(4)];
    return config;
  }

  Request random_request() {
    Request request{.id = ++last_id_};
    if (pick(4) == 0 && last_id_ > 1) {  // the id of somebody who is gone may come again
      const SequenceId old = 1 + pick(last_id_);
      if (!world_.requests().contains(old) && !is_refused(old)) request.id = old;
    }
    const uint32_t positions_max =
        std::min(config_.num_blocks * kBlockTokens, config_.context_tokens_max - 1);
    const auto num_prompt =
        1 + static_cast<uint32_t>(pick(pick(3) ? std::min(100u, positions_max) : positions_max));
    const auto& document = documents_[pick(3)];
    request.prompt.assign(document.begin(), document.begin() + num_prompt);
    if (pick(2)) {
      const auto fork = static_cast<uint32_t>(pick(num_prompt));
      for (uint32_t i = fork; i < num_prompt; ++i) request.prompt[i] = 20 + request.prompt[i] % 2;
    }
    request.max_new_tokens =
        1 + static_cast<uint32_t>(pick(std::min(200u, positions_max - num_prompt + 1)));
    const SequenceRole roles[] = {SequenceRole::kLocal, SequenceRole::kSource,
                                  SequenceRole::kTarget};
    request.role = roles[pick(3)];
    return request;
  }

  bool is_refused(SequenceId id) const {
    return std::any_of(refused_.begin(), refused_.end(),
                       [&](const Request& request) { return request.id == id; });
  }

  void arrive() {
    Request request = random_request();
    num_tokens_wanted_ += request.prompt.size() + request.max_new_tokens;
    if (request.role == SequenceRole::kTarget) {
      refused_.push_back(request);
      return;
    }
    request.awaits_load = pick(4) == 0;
    ASSERT_TRUE(world_.submit(request));
  }

  void retry() {
    if (world_.reserve(refused_.front())) {
      refused_.erase(refused_.begin());
    } else if (world_.scheduler().idle() && !world_.unpin()) {
      ASSERT_FALSE(world_.requests().empty()) << "a grant that fits is refused by an empty engine";
    }
  }

  // Something happens outside, if need be something that ends somebody's waiting.
  bool outside_event(bool must_help) {
    std::vector<SequenceId> ids;
    for (const auto& [id, request] : world_.requests()) ids.push_back(id);
    std::shuffle(ids.begin(), ids.end(), random_);
    if (pick(3) == 0 && world_.unpin()) return true;
    for (const SequenceId id : ids) {
      if (happens_to(id, must_help)) return true;
    }
    return world_.unpin();
  }

  bool happens_to(SequenceId id, bool must_help) {
    const Request& request = world_.requests().at(id);
    const bool cancel = cancels_ && pick(8) == 0;
    switch (world_.state(id)) {
      case SequenceState::kWaiting:
        if (cancel) {
          world_.finish(id);
        } else if (request.awaits_load) {
          world_.load_ready(id, static_cast<uint32_t>(pick(request.prompt.size() / 32 + 2)));
        } else {
          return false;
        }
        return true;
      case SequenceState::kLoading:
        if (cancel) {  // its reads have ended, and nobody wants it any more
          world_.finish(id);
        } else {
          const uint32_t num_blocks = request.load->num_blocks;
          world_.finish_load(id,
                             pick(2) ? num_blocks : static_cast<uint32_t>(pick(num_blocks + 1)));
        }
        return true;
      case SequenceState::kRunning:
        if (request.ended || cancel) {
          world_.finish(id);
          return true;
        }
        if (!must_help && pick(3) == 0) world_.pin(id);
        return !must_help;
      case SequenceState::kHeld: world_.finish(id); return true;
      case SequenceState::kReserved: return happens_to_grant(id, request, must_help);
      case SequenceState::kQuarantined:
        if (!must_help && pick(2)) {
          world_.write_grant(id, true);
        } else {
          world_.end_quarantine(id);
        }
        return true;
    }
    return false;
  }

  bool happens_to_grant(SequenceId id, const Request& request, bool must_help) {
    if (!must_help && pick(8) != 0) {  // grants last, so that others run short meanwhile
      world_.write_grant(id, true);    // part of it, as far as anybody can tell
      return pick(2) == 0;
    }
    const uint64_t fate = pick(request.revoke_asked ? 3 : 8);
    if (fate == 0) {
      ++num_lost_;
      world_.quarantine(id);
    } else if (fate == 1) {
      ++num_lost_;
      world_.finish(id);
    } else {
      world_.activate(id);
    }
    return true;
  }

  std::mt19937_64 random_;
  SchedulerConfig config_;
  SchedulerWorld world_;
  bool cancels_;
  std::vector<std::vector<int32_t>> documents_;
  std::vector<Request> refused_;  // grants to be asked for, again
  SequenceId last_id_ = 0;
  uint64_t num_lost_ = 0;
  uint64_t num_tokens_wanted_ = 0;
};

TEST(SchedulerRandom, EverySequenceEndsWithItsTokens) {
  uint64_t num_preemptions = 0, num_revocations = 0, num_finished = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Driver driver(seed);
    driver.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    num_preemptions += driver.world().num_preemptions();
    num_revocations += driver.world().num_revocations();
    num_finished += driver.world().num_finished();
  }
  // The worlds must be tight enough to mean something.
  EXPECT_GT(num_preemptions, 500u);
  EXPECT_GT(num_revocations, 100u);
  EXPECT_GT(num_finished, 10'000u);
}

}  // namespace
}  // namespace crossdock
