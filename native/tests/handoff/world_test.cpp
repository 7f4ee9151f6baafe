// Two tables in the world: random walks over many seeds, an exhaustive search of one handoff, and
// proof that the checkers notice when a decision of the tables is wrong.
#include "world.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <unordered_set>

namespace crossdock::testing {
namespace {

// A walk with up to `num_moves` random moves, then the end of all faults.
std::string walk(const WorldConfig& config, uint64_t seed, uint32_t* num_committed = nullptr) {
  std::mt19937_64 random(seed);
  World world(config);
  for (int i = 0; i < 400 && world.violation().empty(); ++i) {
    const auto moves = world.moves(true);
    if (moves.empty()) break;
    world.apply(moves[random() % moves.size()]);
  }
  if (world.violation().empty()) world.drain();
  if (num_committed != nullptr) *num_committed += world.num_committed();
  return world.violation();
}

WorldConfig stormy(WorldTransport transport, uint64_t seed) {
  WorldConfig config;
  config.transport = transport;
  config.num_handoffs = 6;
  config.num_blocks = 9;
  config.verify = seed % 2 == 0;
  config.reorder = seed % 3 != 0;
  config.duplicates = seed % 5;
  config.drops = seed % 4;
  config.breaks = seed % 3;
  config.crashes = seed % 7 == 0 ? 1 : 0;
  config.cancels = seed % 3;
  config.ends = (seed / 3) % 3;
  config.refusals = seed % 2;
  config.false_losses = seed % 11 == 0 ? 1 : 0;
  config.corruptions = seed % 6 == 0 ? 1 : 0;
  config.ticks = seed % 4 == 0 ? 2 : 0;
  return config;
}

TEST(HandoffWorld, WithoutFaultsEverythingCommits) {
  for (const WorldTransport transport : {WorldTransport::kTcp, WorldTransport::kShm}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      WorldConfig config;
      config.transport = transport;
      config.num_handoffs = 4;
      config.num_blocks = 8;
      config.verify = seed % 2 == 0;
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
          << "seed " << seed << " transport " << static_cast<int>(transport);
    }
  }
  EXPECT_GT(num_committed, 3000u) << "the storm leaves too little to check";
}

constexpr size_t kStatesMax = 100'000;

struct Search {
  size_t num_states = 0;
  std::string violation;
};

// Every interleaving, up to equal states; from each state, faults may also stop for good.
Search search(const WorldConfig& config, size_t num_states_max) {
  Search result;
  std::unordered_set<std::string> seen;
  std::deque<World> open;
  open.emplace_back(config);
  seen.insert(open.front().fingerprint());
  while (!open.empty() && result.violation.empty() && seen.size() < num_states_max) {
    const World world = open.front();
    open.pop_front();
    for (const Move& move : world.moves(true)) {
      World next = world;
      next.apply(move);
      if (!next.violation().empty()) {
        result.violation = next.violation();
        break;
      }
      if (!seen.insert(next.fingerprint()).second) continue;
      World rest = next;
      rest.drain();
      if (!rest.violation().empty()) {
        result.violation = "after faults stop: " + rest.violation();
        break;
      }
      open.push_back(std::move(next));
    }
  }
  result.num_states = seen.size();
  return result;
}

// Small worlds that between them meet every fault; each is searched to its end.
std::vector<WorldConfig> small_worlds() {
  std::vector<WorldConfig> worlds;
  for (const WorldTransport transport : {WorldTransport::kTcp, WorldTransport::kShm}) {
    WorldConfig calm;
    calm.transport = transport;
    calm.num_blocks = 2;
    calm.verify = transport == WorldTransport::kShm;
    worlds.push_back(calm);
    WorldConfig reordered = calm;
    reordered.reorder = true;
    reordered.ends = reordered.cancels = reordered.duplicates = 1;
    worlds.push_back(reordered);
    WorldConfig broken = calm;
    broken.ends = broken.cancels = broken.breaks = broken.ticks = 1;
    worlds.push_back(broken);
    WorldConfig crashed = calm;
    crashed.ends = crashed.crashes = crashed.false_losses = crashed.refusals = 1;
    crashed.corruptions = 1;
    worlds.push_back(crashed);
    WorldConfig lossy = calm;
    lossy.ends = lossy.cancels = lossy.drops = lossy.ticks = 1;
    worlds.push_back(lossy);
    WorldConfig crowded = calm;
    crowded.num_handoffs = 2;
    crowded.breaks = 1;
    worlds.push_back(crowded);
  }
  return worlds;
}

// The first violation that any small world finds with these tables; empty: none.
std::string search_all(const receiver::Lifecycle& receiver_lifecycle,
                       const sender::Lifecycle& sender_lifecycle) {
  for (WorldConfig config : small_worlds()) {
    config.receiver_lifecycle = &receiver_lifecycle;
    config.sender_lifecycle = &sender_lifecycle;
    const Search result = search(config, kStatesMax);
    EXPECT_LT(result.num_states, kStatesMax) << "a small world that is not searched to its end";
    if (!result.violation.empty()) return result.violation;
  }
  return "";
}

TEST(HandoffWorld, HoldsInEveryInterleavingOfTheSmallWorlds) {
  EXPECT_EQ(search_all(receiver::lifecycle(), sender::lifecycle()), "");
}

// ---- the alarm works: each of these wrong decisions is noticed ----

template <typename Lifecycle, typename State, typename Input, typename Step>
Lifecycle changed(const Lifecycle& original, State state, Input input, State next,
                  std::initializer_list<Step> steps) {
  Lifecycle result = original;
  auto& cell = result.at(state, input);
  cell.next = next;
  cell.num_steps = 0;
  for (const Step step : steps) cell.steps[cell.num_steps++] = step;
  return result;
}

struct ReceiverMutant {
  const char* decision;
  receiver::State state;
  receiver::Input input;
  receiver::State next;
  std::initializer_list<receiver::Step> steps;
};

namespace receiver_mutants {
using S = receiver::State;
using I = receiver::Input;
using D = receiver::Step;
const ReceiverMutant kMutants[] = {
    {"a commit that is not acknowledged", S::kGranted, I::kCommit, S::kCommitted, {D::kActivate}},
    {"an acknowledgement without activation",
     S::kGranted,
     I::kCommit,
     S::kCommitted,
     {D::kSendAck}},
    {"a second activation", S::kCommitted, I::kCommit, S::kCommitted, {D::kActivate, D::kSendAck}},
    {"blocks freed with the revoke",
     S::kGranted,
     I::kEnd,
     S::kFreed,
     {D::kSendRevoke, D::kQuarantine, D::kEndQuarantine}},
    {"blocks freed with the break",
     S::kGranted,
     I::kPairBroken,
     S::kFreed,
     {D::kQuarantine, D::kLost, D::kEndQuarantine}},
    {"a broken pair taken for proof",
     S::kQuarantined,
     I::kPairBroken,
     S::kFreed,
     {D::kEndQuarantine}},
    {"lost heartbeats taken for proof",
     S::kQuarantined,
     I::kPeerLost,
     S::kFreed,
     {D::kEndQuarantine}},
    {"a grace that is taken for proof",
     S::kQuarantined,
     I::kExpired,
     S::kFreed,
     {D::kEndQuarantine}},
    {"a grace without consequence", S::kQuarantined, I::kExpired, S::kQuarantined, {}},
    {"proof that is ignored", S::kQuarantined, I::kWritesProven, S::kQuarantined, {}},
    {"aborted that is ignored", S::kQuarantined, I::kAborted, S::kQuarantined, {}},
    {"a commit that wins over an earlier revoke",
     S::kQuarantined,
     I::kCommit,
     S::kCommitted,
     {D::kActivate, D::kSendAck}},
    {"a grant that outlives its pair", S::kGranted, I::kPairBroken, S::kGranted, {}},
    {"a handoff that outlives P's abort", S::kGranted, I::kAborted, S::kGranted, {}},
    {"a reservation that is forgotten", S::kRevoked, I::kReserved, S::kFreed, {}},
    {"blocks freed under the check",
     S::kVerifying,
     I::kEnd,
     S::kFreed,
     {D::kSendNack, D::kQuarantine, D::kEndQuarantine}},
    {"a wrong checksum that is accepted",
     S::kVerifying,
     I::kVerifyFailed,
     S::kCommitted,
     {D::kActivate, D::kSendAck}},
    {"an ended id that is not refused", S::kFreed, I::kOpen, S::kFreed, {}},
    {"a loss that nobody is told of",
     S::kGranted,
     I::kPairBroken,
     S::kQuarantined,
     {D::kQuarantine}},
    {"an open that waits for ever", S::kPending, I::kPeerLost, S::kFreed, {}},
};
}  // namespace receiver_mutants

TEST(HandoffWorld, NoticesAWrongDecisionOfTheReceiver) {
  for (const ReceiverMutant& mutant : receiver_mutants::kMutants) {
    const auto wrong =
        changed(receiver::lifecycle(), mutant.state, mutant.input, mutant.next, mutant.steps);
    EXPECT_NE(search_all(wrong, sender::lifecycle()), "") << mutant.decision;
  }
}

struct SenderMutant {
  const char* decision;
  sender::State state;
  sender::Input input;
  sender::State next;
  std::initializer_list<sender::Step> steps;
};

namespace sender_mutants {
using S = sender::State;
using I = sender::Input;
using D = sender::Step;
const SenderMutant kMutants[] = {
    {"aborted before the writes are stopped",
     S::kWriting,
     I::kCancel,
     S::kAborted,
     {D::kSendAborted, D::kFinish}},
    {"sources freed when the pair breaks",
     S::kWriting,
     I::kPairBroken,
     S::kAborted,
     {D::kStopWrites, D::kFinish}},
    {"sources freed by an endpoint in error",
     S::kAbortingBroken,
     I::kWritesStopped,
     S::kAborted,
     {D::kFinish}},
    {"sources kept after the pair is closed",
     S::kAbortingBroken,
     I::kPairClosed,
     S::kAbortingBroken,
     {}},
    {"an abort that D is not told of", S::kAborting, I::kWritesStopped, S::kAborted, {D::kFinish}},
    {"a refusal that is ignored", S::kOpened, I::kRefuse, S::kOpened, {}},
    {"a nack that is ignored", S::kCommitting, I::kNack, S::kCommitting, {}},
    {"writes that start twice", S::kWriting, I::kGrant, S::kWriting, {D::kStartWrites}},
    {"success without an acknowledgement",
     S::kWriting,
     I::kWritesArrived,
     S::kDone,
     {D::kSendCommit, D::kFinish}},
    {"a second end", S::kDone, I::kAck, S::kDone, {D::kFinish}},
    {"a cancel before open that D is not told of",
     S::kWaiting,
     I::kCancel,
     S::kAborted,
     {D::kFinish}},
};
}  // namespace sender_mutants

TEST(HandoffWorld, NoticesAWrongDecisionOfTheSender) {
  for (const SenderMutant& mutant : sender_mutants::kMutants) {
    const auto wrong =
        changed(sender::lifecycle(), mutant.state, mutant.input, mutant.next, mutant.steps);
    EXPECT_NE(search_all(receiver::lifecycle(), wrong), "") << mutant.decision;
  }
}

}  // namespace
}  // namespace crossdock::testing
