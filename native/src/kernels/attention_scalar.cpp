// The reference of attention: one loop an output, written to be read.
#include <bit>
#include <cmath>

#include "crossdock/kernels/math.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kBlockSlots = 32;

// As it enters a chain; the rest of an FP8's value is in the other factors.
float element(const std::byte* base, ElementType type, size_t index) {
  const auto fp8 = [&](int shift) {
    const auto code = std::to_integer<uint32_t>(base[index]);
    return std::bit_cast<float>((code & 0x80u) << 24 | (code & 0x7fu) << shift);
  };
  switch (type) {
    case ElementType::kF32: return reinterpret_cast<const float*>(base)[index];
    case ElementType::kBf16: return widen_bf16(reinterpret_cast<const uint16_t*>(base)[index]);
    case ElementType::kFp8E4m3: return fp8(20);
    case ElementType::kFp8E5m2: return fp8(21);
  }
  return 0.0f;
}

const float* scales_of(const KvBlock& block) {
  return reinterpret_cast<const float*>(block.bytes + size_t{block.head_dim} * kBlockSlots);
}

void scores(const Scores& job) {
  const uint32_t head_dim = job.k.head_dim;
  for (uint32_t row = 0; row < job.num_rows; ++row) {
    for (uint32_t slot = 0; slot < kBlockSlots; ++slot) {
      float sum = 0.0f;
      for (uint32_t dim = 0; dim < head_dim; ++dim) {
        sum = std::fma(job.q[size_t{row} * head_dim + dim],
                       element(job.k.bytes, job.k.type, size_t{dim} * kBlockSlots + slot), sum);
      }
      if (is_fp8(job.k.type)) sum *= scales_of(job.k)[slot] * fp8_rest(job.k.type);
      job.scores[row * job.scores_stride + slot] = sum;
    }
  }
}

// What a vector max instruction gives: the second operand when either is NaN or both are equal.
float max_of(float a, float b) { return a > b ? a : b; }

void softmax(float* scores, uint32_t num_slots, float* max, float* sum) {
  constexpr uint32_t kLanes = 16;
  const uint32_t padded = (num_slots + kBlockSlots - 1) / kBlockSlots * kBlockSlots;
  for (uint32_t slot = num_slots; slot < padded; ++slot) scores[slot] = -INFINITY;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -INFINITY;
  for (uint32_t slot = 0; slot < padded; ++slot) {
    lanes[slot % kLanes] = max_of(lanes[slot % kLanes], scores[slot]);
  }
  for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) lanes[i] = max_of(lanes[i], lanes[i + width]);
  }
  *max = lanes[0];
  for (float& lane : lanes) lane = 0.0f;
  for (uint32_t slot = 0; slot < padded; ++slot) {
    scores[slot] = exp_f32(scores[slot] - *max);
    lanes[slot % kLanes] += scores[slot];
  }
  for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  *sum = lanes[0];
}

void weighted_sum(const WeightedSum& job) {
  const uint32_t head_dim = job.v.head_dim;
  for (uint32_t row = 0; row < job.num_rows; ++row) {
    for (uint32_t slot = job.slot_begin; slot < job.slot_end; ++slot) {
      float p = job.p[row * job.p_stride + slot];
      if (is_fp8(job.v.type)) p *= scales_of(job.v)[slot] * kFp8Lift;
      for (uint32_t dim = 0; dim < head_dim; ++dim) {
        float& value = job.values[size_t{row} * head_dim + dim];
        value = std::fma(p, element(job.v.bytes, job.v.type, size_t{slot} * head_dim + dim), value);
      }
    }
  }
}

float latent_value(const LatentRows& rows, uint32_t slot, uint32_t dim) {
  const std::byte* row = rows.bytes + slot * rows.row_bytes;
  const float value = element(row, rows.type, dim);
  if (!is_fp8(rows.type)) return value;
  const auto* scales = reinterpret_cast<const float*>(row + rows.scales_offset);
  return value * 0x1p120f * scales[dim / kLatentGroup];
}

float rope_value(const LatentRows& rows, uint32_t slot, uint32_t dim) {
  const ElementType type = rows.type == ElementType::kF32 ? rows.type : ElementType::kBf16;
  return element(rows.bytes + slot * rows.row_bytes + rows.rope_offset, type, dim);
}

void widen_keys(const LatentRows& rows, float* keys) {
  for (uint32_t slot = 0; slot < kBlockSlots; ++slot) {
    float* key = keys + slot;
    for (uint32_t dim = 0; dim < rows.latent_dim; ++dim, key += kBlockSlots) {
      *key = latent_value(rows, slot, dim);
    }
    for (uint32_t dim = 0; dim < rows.rope_dim; ++dim, key += kBlockSlots) {
      *key = rope_value(rows, slot, dim);
    }
  }
}

void widen_values(const LatentRows& rows, float* values) {
  for (uint32_t slot = 0; slot < kBlockSlots; ++slot) {
    for (uint32_t dim = 0; dim < rows.latent_dim; ++dim) {
      *values++ = latent_value(rows, slot, dim);
    }
  }
}

}  // namespace

const AttentionKernels kAttentionScalar{scores, softmax, weighted_sum, widen_keys, widen_values};

}  // namespace crossdock::kernels
