#include "routing.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "crossdock/kernels/math.h"

namespace crossdock {
namespace {

using Selection = MoeConfig::Selection;

void score_all(const MoeConfig& moe, const float* logits, float* scores) {
  if (moe.scoring == MoeConfig::Scoring::kSigmoid) {
    for (uint32_t i = 0; i < moe.num_experts; ++i) {
      scores[i] = 1.0f / (1.0f + kernels::exp_f32(-logits[i]));
    }
    return;
  }
  const float max = *std::max_element(logits, logits + moe.num_experts);
  float sum = 0.0f;
  for (uint32_t i = 0; i < moe.num_experts; ++i) {
    scores[i] = kernels::exp_f32(logits[i] - max);
    sum += scores[i];
  }
  for (uint32_t i = 0; i < moe.num_experts; ++i) scores[i] /= sum;
}

// The index of the best that is not yet taken (among NaNs the first); marks it taken.
uint32_t take_best(const float* scores, uint32_t size, float* taken) {
  uint32_t best = size;
  for (uint32_t i = 0; i < size; ++i) {
    if (taken[i] == 0.0f && (best == size || scores[i] > scores[best])) best = i;
  }
  assert(best < size);
  taken[best] = 1.0f;
  return best;
}

float group_score(Selection selection, const float* scores, uint32_t size) {
  float best = -INFINITY, second = -INFINITY;
  for (uint32_t i = 0; i < size; ++i) {
    if (scores[i] > best) {
      second = best;
      best = scores[i];
    } else if (scores[i] > second) {
      second = scores[i];
    }
  }
  return selection == Selection::kGroupTopTwo ? best + second : best;
}

// Marks the experts of all groups but the best as taken. `scratch` holds two floats a group.
void exclude_groups(const MoeConfig& moe, const float* ranked, float* scratch, float* taken) {
  const uint32_t size = moe.num_experts / moe.num_groups;
  float* scores = scratch;
  float* chosen = scratch + moe.num_groups;
  for (uint32_t group = 0; group < moe.num_groups; ++group) {
    scores[group] = group_score(moe.selection, ranked + size_t{group} * size, size);
    chosen[group] = 0.0f;
  }
  for (uint32_t i = 0; i < moe.num_chosen_groups; ++i) take_best(scores, moe.num_groups, chosen);
  for (uint32_t i = 0; i < moe.num_experts; ++i) taken[i] = 1.0f - chosen[i / size];
}

}  // namespace

void route(const MoeConfig& moe, const float* logits, const float* correction_bias, float* scratch,
           Choice* choices) {
  float* scores = scratch;
  float* ranked = scores + moe.num_experts;
  float* taken = ranked + moe.num_experts;
  score_all(moe, logits, scores);
  for (uint32_t i = 0; i < moe.num_experts; ++i) {
    ranked[i] = correction_bias == nullptr ? scores[i] : scores[i] + correction_bias[i];
    taken[i] = 0.0f;
  }
  if (moe.selection != Selection::kTop) {
    exclude_groups(moe, ranked, taken + moe.num_experts, taken);
  }
  for (uint32_t i = 0; i < moe.num_chosen; ++i) {
    choices[i].expert = take_best(ranked, moe.num_experts, taken);
  }
  std::sort(choices, choices + moe.num_chosen,
            [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
  float sum = 0.0f;
  for (uint32_t i = 0; i < moe.num_chosen; ++i) sum += scores[choices[i].expert];
  const float divisor = moe.normalise ? sum + 1e-20f : 1.0f;
  for (uint32_t i = 0; i < moe.num_chosen; ++i) {
    choices[i].weight = scores[choices[i].expert] / divisor * moe.scale;
  }
}

}  // namespace crossdock
