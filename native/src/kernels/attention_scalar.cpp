// The reference of attention: one loop an output, written to be read.
#include <cmath>

#include "crossdock/kernels/math.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kBlockSlots = 32;

float element(const std::byte* base, ElementType type, size_t index) {
  if (type == ElementType::kF32) return reinterpret_cast<const float*>(base)[index];
  return widen_bf16(reinterpret_cast<const uint16_t*>(base)[index]);
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
    for (uint32_t dim = 0; dim < head_dim; ++dim) {
      float& value = job.values[size_t{row} * head_dim + dim];
      for (uint32_t slot = job.slot_begin; slot < job.slot_end; ++slot) {
        value = std::fma(job.p[row * job.p_stride + slot],
                         element(job.v.bytes, job.v.type, size_t{slot} * head_dim + dim), value);
      }
    }
  }
}

}  // namespace

const AttentionKernels kAttentionScalar{scores, softmax, weighted_sum};

}  // namespace crossdock::kernels
