#include "rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "crossdock/kernels/elementwise.h"

namespace crossdock {
namespace {

using Scaling = RopeConfig::Scaling;

// theta^(-2i / dim), rounded where the reference implementation rounds to f32. Powers are taken in
// double, so that no processor's C library decides a bit.
std::vector<float> unscaled(const RopeConfig& config, float factor) {
  std::vector<float> frequencies;
  for (uint32_t i = 0; i < config.dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.dim);
    const auto power = static_cast<float>(std::pow(double{config.theta}, double{exponent}));
    frequencies.push_back(1.0f / (factor * power));
  }
  return frequencies;
}

// Llama 3: long wavelengths are stretched, short ones kept, those between are blended.
void scale_llama3(const RopeConfig& config, std::vector<float>& frequencies) {
  const auto context = static_cast<float>(config.original_context_tokens);
  const float low = config.low_frequency_factor, high = config.high_frequency_factor;
  for (float& frequency : frequencies) {
    const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
    if (wavelength < context / high) continue;
    if (wavelength > context / low) {
      frequency /= config.factor;
      continue;
    }
    const float smooth = (context / wavelength - low) / (high - low);
    frequency = (1.0f - smooth) * frequency / config.factor + smooth * frequency;
  }
}

// The dimension that turns `rotations` times over the original context.
double yarn_dimension(const RopeConfig& config, double rotations) {
  const double turns =
      config.original_context_tokens / (rotations * 2.0 * std::numbers::pi_v<double>);
  return config.dim * std::log(turns) / (2.0 * std::log(double{config.theta}));
}

// YaRN: a ramp from kept frequencies to stretched ones.
void scale_yarn(const RopeConfig& config, std::vector<float>& frequencies) {
  double low = yarn_dimension(config, config.beta_fast);
  double high = yarn_dimension(config, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, config.dim - 1.0);
  if (low == high) high += 0.001;
  const auto stretched = unscaled(config, config.factor);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    frequencies[i] = stretched[i] * (1.0f - kept) + frequencies[i] * kept;
  }
}

float magnitude_of(const RopeConfig& config) {
  if (config.scaling != Scaling::kYarn) return 1.0f;
  if (config.attention_factor != 0.0f) return config.attention_factor;
  if (config.mscale != 0.0f && config.mscale_all_dim != 0.0f) {
    return yarn_magnitude(config.factor, config.mscale) /
           yarn_magnitude(config.factor, config.mscale_all_dim);
  }
  return yarn_magnitude(config.factor, 1.0f);
}

}  // namespace

Rope::Rope(const RopeConfig& config)
    : interleaved_(config.interleaved), magnitude_(magnitude_of(config)) {
  inverse_frequency_ = unscaled(config, 1.0f);
  switch (config.scaling) {
    case Scaling::kNone: break;
    case Scaling::kLinear:
      for (float& frequency : inverse_frequency_) frequency /= config.factor;
      break;
    case Scaling::kLlama3: scale_llama3(config, inverse_frequency_); break;
    case Scaling::kYarn: scale_yarn(config, inverse_frequency_); break;
  }
}

void Rope::angles(uint32_t position, float* cosines, float* sines) const {
  kernels::rope_angles(position, inverse_frequency_.data(), half_dim(), cosines, sines);
  if (magnitude_ == 1.0f) return;
  for (uint32_t i = 0; i < half_dim(); ++i) {
    cosines[i] *= magnitude_;
    sines[i] *= magnitude_;
  }
}

void Rope::rotate(float* heads, uint32_t num_heads, size_t stride, const float* cosines,
                  const float* sines) const {
  const uint32_t half = half_dim();
  for (uint32_t head = 0; head < num_heads; ++head) {
    float* x = heads + head * stride;
    if (!interleaved_) {
      kernels::rope_rotate(x, 1, 2 * half, cosines, sines);
      continue;
    }
    for (uint32_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cosines[i] - b * sines[i];
      x[2 * i + 1] = b * cosines[i] + a * sines[i];
    }
  }
}

float yarn_magnitude(float factor, float mscale) {
  if (factor <= 1.0f) return 1.0f;
  return static_cast<float>(0.1 * double{mscale} * std::log(double{factor}) + 1.0);
}

float softmax_scale(const ModelConfig& config) {
  const bool mla = config.attention == ModelConfig::Attention::kMla;
  const uint32_t dim = mla ? config.mla.nope_dim + config.mla.rope_dim : config.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const RopeConfig& rope = config.rope;
  if (!mla || rope.scaling != Scaling::kYarn || rope.mscale_all_dim == 0.0f) return scale;
  const float magnitude = yarn_magnitude(rope.factor, rope.mscale_all_dim);
  return scale * magnitude * magnitude;
}

}  // namespace crossdock
