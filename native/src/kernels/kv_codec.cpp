#include "crossdock/kernels/kv_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kSlots = 32;
constexpr uint32_t kStretch = 32;  // values that are in hand at a time
constexpr size_t kStretchBytes = kStretch * sizeof(float);

void widen(ElementType type, const std::byte* from, uint32_t count, float* to) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  switch (type) {
    case ElementType::kF32: std::memcpy(to, from, count * sizeof(float)); return;
    case ElementType::kBf16:
      for (uint32_t i = 0; i < count; ++i) to[i] = widen_bf16(halves[i]);
      return;
    case ElementType::kFp8E4m3:
      for (uint32_t i = 0; i < count; ++i) to[i] = E4m3::decode(bytes[i]);
      return;
    case ElementType::kFp8E5m2:
      for (uint32_t i = 0; i < count; ++i) to[i] = E5m2::decode(bytes[i]);
      return;
  }
}

void narrow(ElementType type, const float* from, uint32_t count, std::byte* to) {
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  auto* halves = reinterpret_cast<uint16_t*>(to);
  switch (type) {
    case ElementType::kF32: std::memcpy(to, from, count * sizeof(float)); return;
    case ElementType::kBf16:
      for (uint32_t i = 0; i < count; ++i) halves[i] = round_bf16(from[i]);
      return;
    case ElementType::kFp8E4m3:
      for (uint32_t i = 0; i < count; ++i) bytes[i] = E4m3::encode(from[i]);
      return;
    case ElementType::kFp8E5m2:
      for (uint32_t i = 0; i < count; ++i) bytes[i] = E5m2::encode(from[i]);
      return;
  }
}

// As bits of a float without sign, which order as the magnitudes do, and NaN and infinity last.
uint32_t magnitude_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

float scale_for(ElementType type, uint32_t largest_magnitude) {
  if (largest_magnitude >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  if (largest_magnitude == 0) return 0.0f;
  const float scale = std::bit_cast<float>(largest_magnitude) /
                      (type == ElementType::kFp8E4m3 ? kE4m3Max : kE5m2Max);
  return std::max(scale, std::numeric_limits<float>::min());
}

// Divided by its scale; zero where the scale is 0 or NaN.
float quotient(float value, float scale) { return scale > 0.0f ? value / scale : 0.0f; }

// `count` values that share a scale. `read(begin, n, values)` gives some of them in f32,
// `write(begin, n, bytes)` takes their elements. Returns the scale (of f32 and bf16: 1).
template <typename Read, typename Write>
float encode(ElementType type, uint32_t count, const Read& read, const Write& write) {
  float values[kStretch];
  alignas(float) std::byte bytes[kStretchBytes];
  float scale = 1.0f;
  if (is_fp8(type)) {
    uint32_t largest = 0;
    for (uint32_t begin = 0; begin < count; begin += kStretch) {
      const uint32_t n = std::min(kStretch, count - begin);
      read(begin, n, values);
      for (uint32_t i = 0; i < n; ++i) largest = std::max(largest, magnitude_bits(values[i]));
    }
    scale = scale_for(type, largest);
  }
  for (uint32_t begin = 0; begin < count; begin += kStretch) {
    const uint32_t n = std::min(kStretch, count - begin);
    read(begin, n, values);
    if (is_fp8(type)) {
      for (uint32_t i = 0; i < n; ++i) values[i] = quotient(values[i], scale);
    }
    narrow(type, values, n, bytes);
    write(begin, n, bytes);
  }
  return scale;
}

auto reader(const float* values) {
  return [values](uint32_t begin, uint32_t n, float* to) {
    std::memcpy(to, values + begin, n * sizeof(float));
  };
}

auto reader(ElementType type, const std::byte* elements, float scale) {
  return [=](uint32_t begin, uint32_t n, float* to) {
    widen(type, elements + begin * size_bytes(type), n, to);
    if (!is_fp8(type)) return;
    for (uint32_t i = 0; i < n; ++i) to[i] *= scale;
  };
}

auto writer(ElementType type, std::byte* to) {
  return [=](uint32_t begin, uint32_t n, const std::byte* bytes) {
    std::memcpy(to + begin * size_bytes(type), bytes, n * size_bytes(type));
  };
}

// The scales of a head's block: [slot].
const std::byte* scales_of(const std::byte* block, uint32_t head_dim) {
  return block + size_t{kSlots} * head_dim;
}
std::byte* scales_of(std::byte* block, uint32_t head_dim) {
  return block + size_t{kSlots} * head_dim;
}

float read_scale(const std::byte* scales, uint32_t index) {
  float scale = 0.0f;
  std::memcpy(&scale, scales + index * sizeof(float), sizeof(float));
  return scale;
}

void write_scale(std::byte* scales, uint32_t index, float scale) {
  std::memcpy(scales + index * sizeof(float), &scale, sizeof(float));
}

// Row by row: a row's values are contiguous and share a scale.
template <typename Read>
void encode_value_row(ElementType type, uint32_t head_dim, uint32_t slot, const Read& read,
                      std::byte* v_block) {
  std::byte* row = v_block + size_t{slot} * head_dim * size_bytes(type);
  const float scale = encode(type, head_dim, read, writer(type, row));
  if (is_fp8(type)) write_scale(scales_of(v_block, head_dim), slot, scale);
}

// One row of a latent block; `latent(group)` and `rope` are readers of its parts.
template <typename Latent, typename Rope>
void encode_latent_row(const LatentForm& form, const Latent& latent, const Rope& rope,
                       std::byte* row) {
  if (is_fp8(form.type)) {
    for (uint32_t group = 0; group < form.num_scales(); ++group) {
      const uint32_t first = group * kLatentGroup;
      const auto read = [&](uint32_t begin, uint32_t n, float* to) {
        latent(first + begin, n, to);
      };
      write_scale(row + form.scales_offset(), group,
                  encode(form.type, kLatentGroup, read, writer(form.type, row + first)));
    }
  } else {
    encode(form.type, form.latent_dim, latent, writer(form.type, row));
  }
  encode(form.rope_type(), form.rope_dim, rope, writer(form.rope_type(), row + form.rope_offset()));
}

}  // namespace

void store_k(const float* k, uint32_t head_dim, uint32_t slot, ElementType type,
             std::byte* k_block) {
  const size_t size = size_bytes(type);
  const auto scatter = [&](uint32_t begin, uint32_t n, const std::byte* bytes) {
    std::byte* to = k_block + (size_t{begin} * kSlots + slot) * size;
    for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * kSlots * size, bytes + i * size, size);
  };
  const float scale = encode(type, head_dim, reader(k), scatter);
  if (is_fp8(type)) write_scale(scales_of(k_block, head_dim), slot, scale);
}

void store_v(const float* v, uint32_t head_dim, uint32_t slot, ElementType type,
             std::byte* v_block) {
  encode_value_row(type, head_dim, slot, reader(v), v_block);
}

void store_latent_row(const float* latent, const float* rope, const LatentForm& form,
                      std::byte* row) {
  encode_latent_row(form, reader(latent), reader(rope), row);
}

void convert_k(ElementTypes types, uint32_t head_dim, const std::byte* from, std::byte* to) {
  const size_t from_row = kSlots * size_bytes(types.from), to_row = kSlots * size_bytes(types.to);
  float from_scales[kSlots], scales[kSlots], values[kSlots];
  const auto read = [&](uint32_t dim) {
    widen(types.from, from + dim * from_row, kSlots, values);
    if (!is_fp8(types.from)) return;
    for (uint32_t slot = 0; slot < kSlots; ++slot) values[slot] *= from_scales[slot];
  };
  if (is_fp8(types.from)) std::memcpy(from_scales, scales_of(from, head_dim), sizeof(from_scales));
  if (is_fp8(types.to)) {
    uint32_t largest[kSlots] = {};
    for (uint32_t dim = 0; dim < head_dim; ++dim) {
      read(dim);
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        largest[slot] = std::max(largest[slot], magnitude_bits(values[slot]));
      }
    }
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      scales[slot] = scale_for(types.to, largest[slot]);
    std::memcpy(scales_of(to, head_dim), scales, sizeof(scales));
  }
  for (uint32_t dim = 0; dim < head_dim; ++dim) {
    read(dim);
    if (is_fp8(types.to)) {
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        values[slot] = quotient(values[slot], scales[slot]);
      }
    }
    narrow(types.to, values, kSlots, to + dim * to_row);
  }
}

void convert_v(ElementTypes types, uint32_t head_dim, const std::byte* from, std::byte* to) {
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    const std::byte* row = from + size_t{slot} * head_dim * size_bytes(types.from);
    const float scale = is_fp8(types.from) ? read_scale(scales_of(from, head_dim), slot) : 1.0f;
    encode_value_row(types.to, head_dim, slot, reader(types.from, row, scale), to);
  }
}

void convert_latent_row(const LatentForm& form, ElementType to_type, const std::byte* from,
                        std::byte* to) {
  const auto latent = [&](uint32_t begin, uint32_t n, float* values) {
    const uint32_t group = begin / kLatentGroup;
    const float scale = is_fp8(form.type) ? read_scale(from + form.scales_offset(), group) : 1.0f;
    reader(form.type, from, scale)(begin, n, values);
  };
  encode_latent_row({to_type, form.latent_dim, form.rope_dim}, latent,
                    reader(form.rope_type(), from + form.rope_offset(), 1.0f), to);
}

}  // namespace crossdock::kernels
