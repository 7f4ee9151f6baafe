#include "world.h"

#include <algorithm>
#include <iterator>

#include "fleet.h"

namespace crossdock::sim::testing {
namespace {

constexpr uint64_t kMs = 1'000'000;

class WorldTest : public ::testing::TestWithParam<std::string> {
 protected:
  // shm: one host; otherwise two, by this transport.
  void start(uint64_t seed, uint32_t num_blocks = 64) {
    fleet_ = std::make_unique<Fleet>(seed);
    const std::string transport = GetParam() == "shm" ? "auto" : GetParam();
    prefill_ = &fleet_->add("a", num_blocks, transport);
    decode_ = &fleet_->add(GetParam() == "shm" ? "a" : "b", num_blocks, transport);
    fleet_->connect(*prefill_, *decode_, 1);
  }

  World& world() { return fleet_->world; }
  void expect_innocent() {
    for (const Violation& violation : world().violations()) {
      ADD_FAILURE() << violation.rule << " at " << violation.at_ns << " in engine "
                    << violation.engine << ": " << violation.text;
    }
    for (const auto& front : fleet_->fronts) EXPECT_EQ(front->num_second_ends, 0u);
  }
  bool violated(const std::string& rule) {
    const auto& all = world().violations();
    return std::any_of(all.begin(), all.end(), [&](const auto& v) { return v.rule == rule; });
  }

  std::unique_ptr<Fleet> fleet_;
  Front* prefill_ = nullptr;
  Front* decode_ = nullptr;
};

TEST_P(WorldTest, HandoffsGiveTheTokensOfTheOracle) {
  start(1);
  uint64_t id = 0;
  for (const size_t length : {1u, 31u, 32u, 33u, 64u, 150u}) {
    for (int round = 0; round < 2; ++round) {  // cold, then with every prefix warm
      const auto tokens = prompt(length, length);
      fleet_->start_handoff(*prefill_, *decode_, ++id, tokens, 1);
      ASSERT_TRUE(fleet_->run_until(
          [&] { return decode_->outcomes[id].over() && prefill_->outcomes[id].over(); }));
      EXPECT_TRUE(prefill_->outcomes[id].handed_off);
      EXPECT_EQ(decode_->outcomes[id].tokens, expected(tokens)) << length;
    }
  }
  EXPECT_TRUE(
      fleet_->run_until([&] { return fleet_->clean(*prefill_) && fleet_->clean(*decode_); }));
  EXPECT_GT(world().timeline().statistics.bytes_landed, 0u);
  expect_innocent();
}

TEST_P(WorldTest, OneSeedIsOneHistory) {
  std::string digests[3];
  for (int run = 0; run < 3; ++run) {
    start(run == 2 ? 8 : 7);
    for (uint64_t id = 1; id <= 6; ++id) {
      fleet_->start_handoff(*prefill_, *decode_, id, prompt(40 * id, id), 1);
    }
    fleet_->run_for(2 * kMs);
    fleet_->send(*decode_, link::Cancel{3});
    fleet_->run_for(100 * kMs);
    digests[run] = world().timeline().digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
}

// Kills the sender or the receiver at a moment of the handoffs that the seed picks; a slow network
// has bytes on their way at all times.
TEST_P(WorldTest, AKillLeavesTheOtherSideWholeWhereverItFalls) {
  uint64_t num_late = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    start(seed);
    world().network().conditions.path = {
        .delay_min_ns = 10'000, .delay_max_ns = 20 * kMs, .bytes_per_s = 5'000'000};
    for (uint64_t id = 1; id <= 6; ++id) {
      fleet_->start_handoff(*prefill_, *decode_, id, prompt(30 * id, id), 1);
    }
    Random random(seed);
    fleet_->run_for(random.below(60 * kMs));
    Front& killed = seed % 2 == 0 ? *prefill_ : *decode_;
    Front& left = seed % 2 == 0 ? *decode_ : *prefill_;
    world().kill(killed.engine);
    // The router ends what it hears no more of.
    fleet_->run_for(1000 * kMs);
    for (uint64_t id = 1; id <= 6; ++id) {
      if (!left.outcomes[id].over()) fleet_->send(left, link::Cancel{id});
    }
    EXPECT_TRUE(fleet_->run_until([&] { return fleet_->clean(left); })) << seed;
    for (auto& [id, outcome] : decode_->outcomes) {
      if (outcome.finish == link::Finish::kNone) continue;
      EXPECT_EQ(outcome.tokens, expected(prompt(30 * id, id))) << seed;
    }
    num_late += world().timeline().statistics.landed_late;
    expect_innocent();
  }
  EXPECT_EQ(num_late > 0, GetParam() != "shm");
}

TEST_P(WorldTest, AStoppedSenderWritesNothingWrongWhenItGoesOn) {
  uint64_t num_quarantined = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    start(seed, 24);
    world().network().conditions.path = {
        .delay_min_ns = 10'000, .delay_max_ns = 2 * kMs, .bytes_per_s = 2'000'000};
    for (uint64_t id = 1; id <= 6; ++id) {
      fleet_->start_handoff(*prefill_, *decode_, id, prompt(30 * id, id), 1);
    }
    Random random(seed);
    fleet_->run_for(random.below(60 * kMs));
    world().stop(prefill_->engine);
    for (uint64_t id = 1; id <= 6; id += 2) fleet_->send(*decode_, link::Cancel{id});
    fleet_->run_for(5000 * kMs);
    world().resume(prefill_->engine);
    fleet_->run_for(1000 * kMs);
    for (uint64_t id = 1; id <= 6; ++id) {
      for (Front* front : {prefill_, decode_}) {
        if (!front->outcomes[id].over()) fleet_->send(*front, link::Cancel{id});
      }
    }
    EXPECT_TRUE(fleet_->run_until([&] {
      return fleet_->clean(*prefill_) && fleet_->clean(*decode_);
    })) << seed;
    for (auto& [id, outcome] : decode_->outcomes) {
      if (outcome.finish == link::Finish::kNone) continue;
      EXPECT_EQ(outcome.tokens, expected(prompt(30 * id, id))) << seed;
    }
    num_quarantined += world().timeline().statistics.landed_quarantined;
    expect_innocent();
  }
  EXPECT_GT(num_quarantined, 0u);
}

TEST_P(WorldTest, WhatIsPreparedHappensUnlessItIsDisarmed) {
  using Prepare = void (*)(EngineProcess&, Network&);
  const Prepare faults[] = {
      [](EngineProcess& engine, Network&) { engine.node().prepared.posts_to_fail = 1; },
      [](EngineProcess& engine, Network&) { engine.node().prepared.completions_to_lose = 1; },
      [](EngineProcess& engine, Network&) { engine.kill_at_operation(1); },
      [](EngineProcess& engine, Network& network) {
        network.tamperings.add(engine.node().id, "duplicate", "any", 1);
      },
      [](EngineProcess&, Network& network) { network.conditions.lost_completions = 1; }};
  for (size_t i = 0; i < 2 * std::size(faults); ++i) {
    const bool disarmed = i % 2 == 0;
    start(1);
    EngineProcess& sender = world().at(prefill_->engine);
    faults[i / 2](sender, world().network());
    if (disarmed) world().network().disarm();
    fleet_->start_handoff(*prefill_, *decode_, 1, prompt(90, 1), 1);
    fleet_->run_for(10'000 * kMs);
    const Statistics& statistics = world().timeline().statistics;
    const bool happened = sender.exit_code().has_value() || statistics.posts_failed > 0 ||
                          statistics.completions_lost > 0 || statistics.messages_tampered > 0;
    EXPECT_EQ(happened, !disarmed) << i / 2;
    if (disarmed) {
      EXPECT_EQ(decode_->outcomes[1].finish, link::Finish::kLength) << i / 2;
    }
    expect_innocent();
  }
}

// ---- the alarm works
// ------------------------------------------------------------------------------

TEST_P(WorldTest, AFenceThatProvesNothingIsNoticed) {
  bool noticed = false;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    start(seed);
    world().network().broken_promises.fence_proves_nothing = true;
    world().network().conditions.path = {
        .delay_min_ns = 10'000, .delay_max_ns = 5 * kMs, .bytes_per_s = 2'000'000};
    for (uint64_t id = 1; id <= 8; ++id) {
      fleet_->start_handoff(*prefill_, *decode_, id, prompt(90, id), 1);
    }
    fleet_->run_for(1000 * kMs);
    noticed |= violated("commit-before-bytes");
  }
  // Over shared memory a write that is done has landed, and a fence has nothing to prove.
  EXPECT_EQ(noticed, GetParam() != "shm");
}

TEST_P(WorldTest, AClosingThatProvesNothingIsNoticed) {
  bool noticed = false;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    start(seed);
    world().network().broken_promises.closing_proves_nothing = true;
    world().network().conditions.path = {
        .delay_min_ns = 10'000, .delay_max_ns = 5 * kMs, .bytes_per_s = 2'000'000};
    for (uint64_t id = 1; id <= 8; ++id) {
      fleet_->start_handoff(*prefill_, *decode_, id, prompt(90, id), 1);
    }
    fleet_->run_for(30 * kMs);
    fleet_->send(*decode_, link::DisconnectPeer{1});
    fleet_->run_for(500 * kMs);
    noticed |= violated("block-reuse");
  }
  EXPECT_TRUE(noticed);
}

INSTANTIATE_TEST_SUITE_P(Transports, WorldTest, ::testing::Values("shm", "tcp", "rc"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace crossdock::sim::testing
