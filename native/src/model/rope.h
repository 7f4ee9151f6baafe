// Rotary position embedding: the frequencies of each scaling, and the rotation of heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossdock/model/model_config.h"

namespace crossdock {

class Rope {
 public:
  explicit Rope(const RopeConfig& config);

  uint32_t half_dim() const { return static_cast<uint32_t>(inverse_frequency_.size()); }
  const std::vector<float>& inverse_frequency() const { return inverse_frequency_; }
  // What YaRN multiplies the rotated part by; else one.
  float magnitude() const { return magnitude_; }

  // half_dim() cosines and sines of a position, times the magnitude.
  void angles(uint32_t position, float* cosines, float* sines) const;
  // Rotates in place `num_heads` heads that lie `stride` floats apart.
  void rotate(float* heads, uint32_t num_heads, size_t stride, const float* cosines,
              const float* sines) const;

 private:
  bool interleaved_ = false;
  float magnitude_ = 1.0f;
  std::vector<float> inverse_frequency_;
};

// What YaRN multiplies by where a context is `factor` times the original: 0.1 mscale ln(factor) + 1
// (arXiv 2309.00071, section 3.4).
float yarn_magnitude(float factor, float mscale);

// What attention scores are multiplied by: one over the root of the head's size, and with YaRN's
// mscale_all_dim also the square of its magnitude (DeepSeek-V2 and V3).
float softmax_scale(const ModelConfig& config);

}  // namespace crossdock
