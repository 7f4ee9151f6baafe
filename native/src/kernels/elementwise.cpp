#include "crossdock/kernels/elementwise.h"

#include <cmath>

namespace crossdock::kernels {
namespace {

constexpr uint32_t kLanes = 16;

// Sine and cosine of a small or large angle, in double: x = n pi/2 + r, |r| <= pi/4, then Taylor
// polynomials whose next term is under 1e-13. Our own, because a C library may choose another
// routine for another processor. Sums and products only, so every processor agrees.
struct SineCosine {
  float sine;
  float cosine;
};

SineCosine sine_cosine(float angle) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  // pi/2 in two parts, the first with 33 bits: n * high is exact for every n below 2^20.
  constexpr double kHalfPiHigh = 0x1.921fb544p+0;
  constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;
  const double n = std::nearbyint(angle * kTwoOverPi);
  const double r = (angle - n * kHalfPiHigh) - n * kHalfPiLow;
  const double r2 = r * r;
  double s = -1.0 / 39916800, c = -1.0 / 3628800;
  s = s * r2 + 1.0 / 362880;
  s = s * r2 - 1.0 / 5040;
  s = s * r2 + 1.0 / 120;
  s = s * r2 - 1.0 / 6;
  s = s * r2 * r + r;
  c = (1.0 / 479001600) * r2 + c;
  c = c * r2 + 1.0 / 40320;
  c = c * r2 - 1.0 / 720;
  c = c * r2 + 1.0 / 24;
  c = c * r2 - 0.5;
  c = c * r2 + 1.0;
  switch (static_cast<int64_t>(n) & 3) {
    case 0: return {static_cast<float>(s), static_cast<float>(c)};
    case 1: return {static_cast<float>(c), static_cast<float>(-s)};
    case 2: return {static_cast<float>(-s), static_cast<float>(-c)};
    default: return {static_cast<float>(-c), static_cast<float>(s)};
  }
}

}  // namespace

void rms_norm(const float* x, const float* weight, uint32_t size, float epsilon, float* y) {
  float lanes[kLanes] = {};
  const uint32_t whole = size / kLanes * kLanes;
  for (uint32_t i = 0; i < whole; i += kLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (uint32_t i = whole; i < size; ++i) lanes[i - whole] += x[i] * x[i];
  for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  const float scale = 1.0f / std::sqrt(lanes[0] / static_cast<float>(size) + epsilon);
  for (uint32_t i = 0; i < size; ++i) y[i] = (x[i] * scale) * weight[i];
}

void rope_angles(uint32_t position, const float* inverse_frequency, uint32_t half_dim,
                 float* cosines, float* sines) {
  for (uint32_t i = 0; i < half_dim; ++i) {
    const SineCosine value = sine_cosine(static_cast<float>(position) * inverse_frequency[i]);
    cosines[i] = value.cosine;
    sines[i] = value.sine;
  }
}

void rope_rotate(float* heads, uint32_t num_heads, uint32_t head_dim, const float* cosines,
                 const float* sines) {
  const uint32_t half = head_dim / 2;
  for (uint32_t head = 0; head < num_heads; ++head) {
    float* first = heads + size_t{head} * head_dim;
    float* second = first + half;
    for (uint32_t i = 0; i < half; ++i) {
      const float a = first[i], b = second[i];
      first[i] = a * cosines[i] - b * sines[i];
      second[i] = b * cosines[i] + a * sines[i];
    }
  }
}

}  // namespace crossdock::kernels
