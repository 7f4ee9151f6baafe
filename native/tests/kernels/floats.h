// What the tests of the kernels share: numbers, and their comparison bit by bit.
#pragma once

#include <cstring>
#include <random>
#include <vector>

namespace crossdock::kernels {

inline std::vector<float> random_floats(size_t count, uint64_t seed, float spread = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

// Whether both have the same bits; one NaN is as good as another.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = a[i] != a[i] && b[i] != b[i];
    if (!both_nan && std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace crossdock::kernels
