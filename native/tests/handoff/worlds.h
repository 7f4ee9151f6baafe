// The small worlds that are searched: between them they meet every fault, alone and together.
#pragma once

#include <vector>

#include "world.h"

namespace crossdock::testing {

std::vector<WorldConfig> small_worlds();

}  // namespace crossdock::testing
