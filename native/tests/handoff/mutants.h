// Wrong decisions, each of which some checker must notice in some small world.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "world.h"

namespace crossdock::testing {

struct Mutant {
  std::string decision;
  std::function<void(WorldConfig&)> change;
};

// The worlds only hold pointers to the lifecycles that are changed: the mutants must outlive them.
std::vector<Mutant> mutants();

}  // namespace crossdock::testing
