// Every sequence of events of a few small worlds, each checked after every event and drained at its
// end: from every state that can be reached, everybody's waiting ends.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "scheduler_world.h"

namespace crossdock {
namespace {

using Request = SchedulerWorld::Request;

struct Event {
  std::string name;
  std::function<bool(SchedulerWorld&)> apply;  // false where it is not legal now
};

std::vector<int32_t> prompt_of(uint32_t length, uint32_t fork, int32_t tail) {
  std::vector<int32_t> prompt(length, 1);
  for (uint32_t i = fork; i < length; ++i) prompt[i] = tail;
  return prompt;
}

bool is_in(const SchedulerWorld& world, SequenceId id, SequenceState state) {
  return world.scheduler().contains(id) && world.state(id) == state;
}

// Submits or reserves once.
Event arrival(const Request& request) {
  return {"arrive " + std::to_string(request.id), [request](SchedulerWorld& world) {
            if (world.scheduler().contains(request.id)) return false;
            return request.role == SequenceRole::kTarget ? world.reserve(request)
                                                         : world.submit(request);
          }};
}

Event finish(SequenceId id) {
  return {"finish " + std::to_string(id), [id](SchedulerWorld& world) {
            if (!world.scheduler().contains(id)) return false;
            if (world.state(id) == SequenceState::kQuarantined) return false;
            world.finish(id);
            return true;
          }};
}

Event plan() {
  return {"plan", [](SchedulerWorld& world) {
            if (world.has_pending_step()) return false;
            world.plan();
            return true;
          }};
}

Event complete() {
  return {"complete", [](SchedulerWorld& world) {
            if (!world.has_pending_step()) return false;
            world.complete_step();
            return true;
          }};
}

// Steps until somebody's next token opens a block, so that six events go a long way.
Event run() {
  return {"run", [](SchedulerWorld& world) {
            if (world.has_pending_step()) return false;
            for (int i = 0; i < 32; ++i) {
              world.plan();
              if (!world.has_pending_step()) return i > 0;
              world.complete_step();
            }
            return true;
          }};
}

std::vector<Event> grant_events(SequenceId id) {
  using enum SequenceState;
  return {{"activate",
           [id](SchedulerWorld& world) {
             if (!is_in(world, id, kReserved)) return false;
             world.activate(id);
             return true;
           }},
          {"quarantine",
           [id](SchedulerWorld& world) {
             if (!is_in(world, id, kReserved)) return false;
             world.quarantine(id);
             return true;
           }},
          {"end_quarantine", [id](SchedulerWorld& world) {
             if (!is_in(world, id, kQuarantined)) return false;
             world.end_quarantine(id);
             return true;
           }}};
}

std::vector<Event> load_events(SequenceId id) {
  return {{"load_ready",
           [id](SchedulerWorld& world) {
             if (!is_in(world, id, SequenceState::kWaiting)) return false;
             if (!world.requests().at(id).awaits_load) return false;
             world.load_ready(id, 2);
             return true;
           }},
          {"loaded", [id](SchedulerWorld& world) {
             if (!is_in(world, id, SequenceState::kLoading)) return false;
             world.finish_load(id, 1);
             return true;
           }}};
}

// Depth first. A world is made anew by replaying its events: there is no way to copy one.
uint64_t explore(const SchedulerConfig& config, const std::vector<Event>& events, size_t depth) {
  uint64_t num_worlds = 0;
  std::vector<size_t> path;
  const std::function<void()> visit = [&] {
    SchedulerWorld world(config);
    for (const size_t event : path) {
      if (!events[event].apply(world)) return;
    }
    ++num_worlds;
    const bool drained = world.drain();
    if (!drained || testing::Test::HasFailure()) {
      std::string trace;
      for (const size_t event : path) trace += events[event].name + "; ";
      FAIL() << (drained ? "" : "somebody waits for ever after: ") << trace;
    }
    if (path.size() == depth) return;
    for (size_t event = 0; event < events.size() && !testing::Test::HasFailure(); ++event) {
      path.push_back(event);
      visit();
      path.pop_back();
    }
  };
  visit();
  return num_worlds;
}

std::vector<Event> join(std::vector<std::vector<Event>> lists) {
  std::vector<Event> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

constexpr SchedulerConfig kTiny{.num_blocks = 4,
                                .token_budget = 40,
                                .num_sequences_max = 3,
                                .context_tokens_max = 128,
                                .quarantine_max = 1.0};

TEST(SchedulerSmallWorlds, ALocalASourceAndATarget) {
  const Request local{1, SequenceRole::kLocal, prompt_of(31, 31, 0), 60};
  const Request source{2, SequenceRole::kSource, prompt_of(64, 33, 2), 1};
  const Request target{3, SequenceRole::kTarget, prompt_of(64, 40, 3), 30};
  const auto num_worlds = explore(kTiny,
                                  join({{arrival(local), arrival(source), arrival(target), plan(),
                                         complete(), run(), finish(1), finish(2), finish(3)},
                                        grant_events(3)}),
                                  6);
  EXPECT_GT(num_worlds, 10'000u);
}

TEST(SchedulerSmallWorlds, TwinsThatDuplicateEachOthersBlocks) {
  // The same prompt at the same time: the second one's blocks are duplicates, and its generated
  // ones stand in the tree under the first one's.
  const Request first{1, SequenceRole::kLocal, prompt_of(33, 33, 0), 32};
  const Request twin{2, SequenceRole::kLocal, prompt_of(33, 33, 0), 90};
  const Request target{3, SequenceRole::kTarget, prompt_of(33, 33, 0), 60};
  const auto num_worlds = explore(kTiny,
                                  join({{arrival(first), arrival(twin), arrival(target), plan(),
                                         complete(), run(), finish(1), finish(2), finish(3)},
                                        grant_events(3)}),
                                  6);
  EXPECT_GT(num_worlds, 10'000u);
}

TEST(SchedulerSmallWorlds, LoadsFromAnOuterTier) {
  const Request loading{.id = 1,
                        .role = SequenceRole::kLocal,
                        .prompt = prompt_of(70, 70, 0),
                        .max_new_tokens = 50,
                        .awaits_load = true};
  const Request other{2, SequenceRole::kLocal, prompt_of(40, 33, 2), 60};
  const auto num_worlds =
      explore(kTiny,
              join({{arrival(loading),
                     arrival(other),
                     plan(),
                     complete(),
                     run(),
                     finish(1),
                     finish(2),
                     {"pin",
                      [](SchedulerWorld& world) {
                        if (!is_in(world, 2, SequenceState::kRunning)) return false;
                        world.pin(2);
                        return true;
                      }},
                     {"unpin", [](SchedulerWorld& world) { return world.unpin(); }}},
                    load_events(1)}),
              6);
  EXPECT_GT(num_worlds, 4'000u);
}

}  // namespace
}  // namespace crossdock
