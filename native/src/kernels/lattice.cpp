// Finds scale and minimum of a group of int4 weights.
//
// Weights that come out of a 4-bit checkpoint are at most sixteen values d * n + m, each rounded to
// f32 once. Whoever quantised them chose d and m, and not always such that n = 0 and n = 15 occur,
// or that d is positive. So, unless they do and it is: for every number of steps that may lie
// between the smallest and the largest weight, when all weights lie on such steps, try each place
// of the smallest within the sixteen, and keep the first lattice that gives every weight back.
#include "lattice.h"

#include <algorithm>
#include <cmath>

#include "crossdock/kernels/math.h"
#include "crossdock/kernels/product.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kSteps = 15;  // between the sixteen values of a lattice
constexpr float kF16Max = 65504.0f;
// How far from a step, in steps, a weight may lie before the lattice is out of the question: the
// rounding to f32 moves it less wherever the minimum is under a thousand steps.
constexpr float kTolerance = 0.01f;

float nearest_f16(float value) {
  return widen_f16(round_f16(std::fmax(std::fmin(value, kF16Max), -kF16Max)));
}

bool lie_on(const Lattice& lattice, const float* weights, uint32_t count) {
  return std::all_of(weights, weights + count,
                     [&](float weight) { return lattice.value(lattice.nibble(weight)) == weight; });
}

// The different values among a group's weights, ascending.
struct DistinctValues {
  float values[kSteps + 1];
  uint32_t count = 0;
  bool too_many = false;  // more than a lattice has

  explicit DistinctValues(const float* weights) {
    for (uint32_t i = 0; i < kGroup && !too_many; ++i) insert(weights[i]);
  }
  void insert(float value) {
    const float* at = std::lower_bound(values, values + count, value);
    if (at != values + count && *at == value) return;
    too_many = count > kSteps;
    if (too_many) return;
    std::copy_backward(values + (at - values), values + count, values + count + 1);
    values[at - values] = value;
    ++count;
  }
  float smallest() const { return values[0]; }
  float largest() const { return values[count - 1]; }

  bool lie_on_steps(float step) const {
    return std::all_of(values, values + count, [&](float value) {
      const float steps = (value - smallest()) / step;
      const float nearest = (steps + kRoundingMagic) - kRoundingMagic;
      return std::fabs(steps - nearest) < kTolerance;
    });
  }
  bool lie_on(const Lattice& lattice) const {
    return std::all_of(values, values + count,
                       [&](float value) { return lattice.value(lattice.nibble(value)) == value; });
  }
};

// A value alone: what f16 rounds off becomes the scale.
Lattice lattice_of_one(float value) {
  const float minimum = nearest_f16(value);
  return {nearest_f16(value - minimum), minimum};
}

bool find_lattice(const DistinctValues& distinct, Lattice* found) {
  const float range = distinct.largest() - distinct.smallest();
  for (uint32_t steps = kSteps; steps >= 1; --steps) {
    const float step = range / static_cast<float>(steps);
    if (!distinct.lie_on_steps(step)) continue;
    const float scale = nearest_f16(step);
    for (uint32_t below = 0; below <= kSteps - steps; ++below) {
      const float first = static_cast<float>(below) * scale;
      const Lattice ascending{scale, nearest_f16(distinct.smallest() - first)};
      const Lattice descending{-scale, nearest_f16(distinct.largest() + first)};
      for (const Lattice& lattice : {ascending, descending}) {
        if (!lie_on(lattice, distinct.values, distinct.count)) continue;
        *found = lattice;
        return true;
      }
    }
  }
  return false;
}

}  // namespace

Lattice lattice_of(const float* weights) {
  const auto [smallest, largest] = std::minmax_element(weights, weights + kGroup);
  if (*smallest == *largest) return lattice_of_one(*smallest);
  const Lattice whole{nearest_f16((*largest - *smallest) / float{kSteps}), nearest_f16(*smallest)};
  if (lie_on(whole, weights, kGroup)) return whole;
  const DistinctValues distinct(weights);
  Lattice found;
  return !distinct.too_many && find_lattice(distinct, &found) ? found : whole;
}

}  // namespace crossdock::kernels
