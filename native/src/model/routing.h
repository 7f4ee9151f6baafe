// Which experts a token takes, and how they weigh.
#pragma once

#include <cstdint>
#include <vector>

#include "crossdock/model/model_config.h"

namespace crossdock {

struct Choice {
  uint32_t expert = 0;
  float weight = 0.0f;
};

// Floats of scratch that `route` needs.
inline size_t route_scratch_floats(const MoeConfig& moe) {
  return size_t{3} * moe.num_experts + size_t{2} * moe.num_groups;
}

// From the router's num_experts logits to num_chosen choices by ascending expert. Ties go to the
// lower expert; `correction_bias` (null: none) chooses but does not weigh.
void route(const MoeConfig& moe, const float* logits, const float* correction_bias, float* scratch,
           Choice* choices);

}  // namespace crossdock
