// The small operations between products. They use no fma, and their sums run in fixed lanes, so one
// portable implementation gives the same bits on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossdock::kernels {

// y = x / sqrt(mean(x^2) + epsilon) * weight.
void rms_norm(const float* x, const float* weight, uint32_t size, float epsilon, float* y);

// cosines[i] and sines[i] of position * inverse_frequency[i], for half a head: the angle is rounded
// to f32 as the reference implementation does, its sine and cosine are good to 1 ulp.
void rope_angles(uint32_t position, const float* inverse_frequency, uint32_t half_dim,
                 float* cosines, float* sines);

// Rotates pairs (i, i + head_dim / 2) of num_heads heads in place: the half-rotation order.
void rope_rotate(float* heads, uint32_t num_heads, uint32_t head_dim, const float* cosines,
                 const float* sines);

}  // namespace crossdock::kernels
