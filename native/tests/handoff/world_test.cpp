// Tables in the world: random walks over many seeds, an exhaustive search of small worlds, and
// proof that the checkers notice when a decision of the tables is wrong. `make model-check` shows
// what was searched and what was noticed.
#include "world.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "mutants.h"
#include "search.h"
#include "worlds.h"

namespace crossdock::testing {
namespace {

std::string text_of(const std::optional<Violation>& violation) {
  if (!violation.has_value()) return "";
  return std::string(name(violation->invariant)) + ": " + violation->what;
}

const char* name(WorldTransport transport) {
  return transport == WorldTransport::kTcp ? "tcp" : "shm";
}

// ---- random walks ----

// A walk with up to 400 random moves, then the end of all faults.
std::string walk(const WorldConfig& config, uint64_t seed, uint32_t* num_committed) {
  std::mt19937_64 random(seed);
  World world(config);
  for (int i = 0; i < 400 && !world.violation().has_value(); ++i) {
    const auto moves = world.moves(true);
    if (moves.empty()) break;
    world.apply(moves[random() % moves.size()]);
  }
  if (!world.violation().has_value()) world.drain();
  *num_committed += world.num_committed();
  return text_of(world.violation());
}

WorldConfig stormy(WorldTransport transport, uint64_t seed) {
  WorldConfig config;
  config.transport = transport;
  config.num_senders = 1 + static_cast<uint32_t>(seed % 3);
  config.num_handoffs = 6;
  config.num_blocks = 9;
  config.table.verify = seed % 2 == 0;
  config.reorder = seed % 3 != 0;
  const auto now_and_then = [seed](uint64_t period) { return seed % period == 0 ? 1u : 0u; };
  const auto up_to = [seed](uint64_t most) { return static_cast<uint32_t>(seed % (most + 1)); };
  config.faults = {.duplicates = up_to(4),
                   .drops = up_to(3),
                   .strays = up_to(5),
                   .forgeries = 2 * now_and_then(7),
                   .breaks = up_to(2),
                   .p_crashes = now_and_then(7),
                   .d_crashes = now_and_then(13),
                   .router_deaths = now_and_then(5),
                   .cancels = up_to(2),
                   .ends = static_cast<uint32_t>((seed / 3) % 3),
                   .refusals = up_to(1),
                   .false_losses = now_and_then(11),
                   .corruptions = now_and_then(6),
                   .lost_completions = now_and_then(8),
                   .ticks = 2 * now_and_then(4)};
  return config;
}

TEST(HandoffWorld, WithoutFaultsEverythingCommits) {
  for (const WorldTransport transport : {WorldTransport::kTcp, WorldTransport::kShm}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      WorldConfig config;
      config.transport = transport;
      config.num_senders = 1 + static_cast<uint32_t>(seed % 2);
      config.num_handoffs = 4;
      config.num_blocks = 8;
      config.table.verify = seed % 4 < 2;
      uint32_t num_committed = 0;
      ASSERT_EQ(walk(config, seed, &num_committed), "") << "seed " << seed;
      ASSERT_EQ(num_committed, 4u) << "seed " << seed;
    }
  }
}

TEST(HandoffWorld, KeepsItsInvariantsThroughFaults) {
  uint32_t num_committed = 0;
  for (const WorldTransport transport : {WorldTransport::kTcp, WorldTransport::kShm}) {
    for (uint64_t seed = 0; seed < 3000; ++seed) {
      ASSERT_EQ(walk(stormy(transport, seed), seed, &num_committed), "")
          << "seed " << seed << " transport " << name(transport);
    }
  }
  EXPECT_GT(num_committed, 3000u) << "the storm leaves too little to check";
}

// ---- every interleaving ----

TEST(HandoffWorld, HoldsInEveryInterleavingOfTheSmallWorlds) {
  std::printf("%-30s %-9s %5s %9s %9s %12s\n", "world", "transport", "depth", "", "states",
              "transitions");
  size_t num_states = 0, num_transitions = 0;
  const auto worlds = small_worlds();
  for (const WorldConfig& world : worlds) {
    const SearchResult result = search(world);
    std::printf("%-30s %-9s %5u %9s %9zu %12zu\n", world.name.c_str(), name(world.transport),
                result.depth, result.exhausted ? "(the end)" : "", result.num_states,
                result.num_transitions);
    EXPECT_EQ(text_of(result.violation), "")
        << world.name << ", " << name(world.transport) << ": " << result.moves;
    EXPECT_LT(result.num_states, kStatesMax) << world.name << ": not searched as far as it says";
    num_states += result.num_states;
    num_transitions += result.num_transitions;
  }
  std::printf("model check: %zu worlds, %zu states, %zu transitions, no violation\n", worlds.size(),
              num_states, num_transitions);
}

// ---- the alarm works: each of these wrong decisions is noticed ----

TEST(HandoffWorld, NoticesEveryWrongDecision) {
  std::printf("%-44s %-30s %s\n", "wrong decision", "noticed in", "for");
  size_t num_noticed = 0;
  const auto all = mutants();
  for (const Mutant& mutant : all) {
    bool noticed = false;
    for (WorldConfig world : small_worlds()) {
      mutant.change(world);
      const SearchResult result = search(world);
      noticed = result.violation.has_value();
      if (!noticed) continue;
      std::printf("%-44s %-30s %s\n", mutant.decision.c_str(),
                  (world.name + ", " + name(world.transport)).c_str(),
                  name(result.violation->invariant));
      ++num_noticed;
      break;
    }
    EXPECT_TRUE(noticed) << mutant.decision;
  }
  std::printf("model check: %zu of %zu wrong decisions noticed\n", num_noticed, all.size());
}

}  // namespace
}  // namespace crossdock::testing
