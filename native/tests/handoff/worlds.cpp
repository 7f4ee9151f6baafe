#include "worlds.h"

namespace crossdock::testing {
namespace {

struct Plan {
  const char* name;
  Faults faults;
  uint32_t num_senders = 1;
  uint32_t num_handoffs = 1;
  bool reorder = false;
  bool verify = true;  // over shm; over tcp nothing is verified
  uint32_t depth_max = UINT32_MAX;
  bool keys_differ = false;
};

constexpr Faults kEveryFault{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// The cheap ones first: most wrong decisions are found in them.
const Plan kPlans[] = {
    {"no faults", {}},
    {"callers and routers leave", {.router_deaths = 1, .cancels = 1, .ends = 1}},
    {"messages repeat and overtake", {.duplicates = 2, .cancels = 1, .ends = 1}, 1, 1, true},
    {"completions are lost", {.ends = 1, .lost_completions = 1, .ticks = 1}},
    {"messages are lost", {.drops = 2, .router_deaths = 1, .cancels = 1, .ends = 1, .ticks = 1}},
    {"messages are forged", {.forgeries = 2}},
    {"forged while callers leave", {.forgeries = 1, .cancels = 1, .ends = 1}},
    {"forged and lost", {.drops = 1, .forgeries = 1, .ends = 1, .ticks = 1}},
    {"the keys differ", {}, 1, 1, false, true, UINT32_MAX, true},
    {"P restarts", {.p_crashes = 1, .ends = 1, .refusals = 1, .false_losses = 1, .corruptions = 1}},
    {"another peer speaks", {.strays = 1, .ends = 1}, 2, 1, false, false},
    {"messages of nobody overtake", {.strays = 1}, 1, 1, true, false},
    {"messages of nobody", {.strays = 1, .breaks = 1, .ends = 1}, 1, 1, false, false},
    {"pairs break", {.breaks = 2, .cancels = 1, .ends = 1, .ticks = 1}},
    {"D restarts", {.breaks = 1, .d_crashes = 1, .cancels = 1, .ends = 1}},
    {"two handoffs, room for one", {.breaks = 1}, 1, 2},
    {"two senders, one restarts", {.p_crashes = 1}, 2, 2},
    {"every fault at once", kEveryFault, 1, 1, true, true, 6},
};

}  // namespace

std::vector<WorldConfig> small_worlds() {
  std::vector<WorldConfig> worlds;
  for (const Plan& plan : kPlans) {
    for (const WorldTransport transport : {WorldTransport::kTcp, WorldTransport::kShm}) {
      WorldConfig world;
      world.name = plan.name;
      world.transport = transport;
      world.num_senders = plan.num_senders;
      world.num_handoffs = plan.num_handoffs;
      world.num_blocks = 2;
      world.reorder = plan.reorder;
      world.keys_differ = plan.keys_differ;
      world.depth_max = plan.depth_max;
      world.faults = plan.faults;
      world.table.verify = plan.verify && transport == WorldTransport::kShm;
      // A corruption that nobody looks for is found by nobody.
      if (!world.table.verify) world.faults.corruptions = 0;
      worlds.push_back(std::move(world));
    }
  }
  return worlds;
}

}  // namespace crossdock::testing
