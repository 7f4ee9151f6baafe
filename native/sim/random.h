// The one source of chance in a simulated world: SplitMix64 (Steele, Lea, Flood, 2014).
#pragma once

#include <cassert>
#include <cstdint>

namespace crossdock::sim {

// A bijection that spreads every bit; also the mixing step of whatever is hashed here.
constexpr uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr uint64_t mix(uint64_t a, uint64_t b) {
  return scramble(a * 0x9e3779b97f4a7c15u + scramble(b + 0x9e3779b97f4a7c15u));
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(scramble(seed + 1)) {}

  uint64_t next() { return scramble(state_ += 0x9e3779b97f4a7c15u); }
  // In [0, end). The bias is that of a remainder, which does not matter here.
  uint64_t below(uint64_t end) {
    assert(end > 0);
    return next() % end;
  }
  uint64_t between(uint64_t first, uint64_t last) { return first + below(last - first + 1); }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace crossdock::sim
