// Weights into panels, and one output back out of them.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"
#include "crossdock/kernels/product.h"
#include "lattice.h"
#include "panel_layout.h"

namespace crossdock::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kF16Max = 65504.0f;

uint32_t num_stretches(uint32_t depth) { return (depth + kFp8Stretch - 1) / kFp8Stretch; }

// The largest magnitude; NaN when one of the values is no number.
float magnitude_max(const float* values, uint32_t count) {
  float max = 0.0f;
  for (uint32_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return kNan;
    max = std::max(max, std::fabs(values[i]));
  }
  return max;
}

// Weight k of an output; zero in a padding output and past the depth.
struct Source {
  const float* const* rows;
  uint32_t depth;

  void group(uint32_t output, uint32_t k, float* values) const {
    for (uint32_t i = 0; i < kGroup; ++i) {
      values[i] = rows[output] != nullptr && k + i < depth ? rows[output][k + i] : 0.0f;
    }
  }
};

void pack_floats(const Source& source, WeightFormat format, std::byte* panel) {
  for (uint32_t output = 0; output < kPanelOutputs; ++output) {
    const float* row = source.rows[output];
    for (uint32_t k = 0; k < source.depth; ++k) {
      const size_t at = size_t{k} * kPanelOutputs + output;
      const float value = row == nullptr ? 0.0f : row[k];
      if (format == WeightFormat::kF32) {
        reinterpret_cast<float*>(panel)[at] = value;
      } else {
        reinterpret_cast<uint16_t*>(panel)[at] = round_bf16(value);
      }
    }
  }
}

// A stretch of an fp8 panel: 16 scales of the values / 256, then the values.
struct StretchView {
  std::byte* base;

  StretchView(std::byte* panel, uint32_t stretch)
      : base(panel + size_t{stretch} * kPanelOutputs * (4 + kFp8Stretch)) {}
  float* scales() const { return reinterpret_cast<float*>(base); }
  uint8_t* values(uint32_t k) const {
    return reinterpret_cast<uint8_t*>(base) + kPanelOutputs * (4 + size_t{k});
  }
};

void pack_fp8(const Source& source, std::byte* panel) {
  for (uint32_t first = 0; first < source.depth; first += kFp8Stretch) {
    const StretchView stretch(panel, first / kFp8Stretch);
    const uint32_t count = std::min(kFp8Stretch, source.depth - first);
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      const float* row = source.rows[output];
      const float max = row == nullptr ? 0.0f : magnitude_max(row + first, count);
      const float scale = max / kE4m3Max;
      stretch.scales()[output] = scale * 256.0f;
      for (uint32_t k = 0; k < count; ++k) {
        stretch.values(k)[output] = scale > 0.0f ? E4m3::encode(row[first + k] / scale) : 0;
      }
    }
  }
}

void pack_int8(const Source& source, std::byte* panel) {
  float values[kGroup];
  for (uint32_t g = 0; g < num_groups(source.depth); ++g, panel += kInt8Group.bytes) {
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      source.group(output, g * kGroup, values);
      const float ideal = magnitude_max(values, kGroup) / 127.0f;
      const uint16_t bits = round_f16(ideal > kF16Max ? kF16Max : ideal);
      reinterpret_cast<uint16_t*>(panel)[output] = bits;
      const float scale = widen_f16(bits);
      for (uint32_t k = 0; k < kGroup; ++k) {
        const float q = scale > 0.0f ? values[k] / scale : 0.0f;
        const float clamped = q > -127.0f ? (q < 127.0f ? q : 127.0f) : -127.0f;
        // The sum rounds to an integer, which its low bits hold in two's complement.
        panel[int8_byte(k, output)] =
            static_cast<std::byte>(std::bit_cast<uint32_t>(clamped + kRoundingMagic));
      }
    }
  }
}

void pack_int4(const Source& source, std::byte* panel) {
  float values[kGroup];
  for (uint32_t g = 0; g < num_groups(source.depth); ++g, panel += kInt4Group.bytes) {
    std::memset(panel, 0, kInt4Group.bytes);
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      source.group(output, g * kGroup, values);
      const Lattice lattice =
          std::isnan(magnitude_max(values, kGroup)) ? Lattice{kNan, kNan} : lattice_of(values);
      reinterpret_cast<uint16_t*>(panel)[output] = round_f16(lattice.scale);
      reinterpret_cast<uint16_t*>(panel)[kPanelOutputs + output] = round_f16(lattice.minimum);
      for (uint32_t k = 0; k < kGroup; ++k) {
        const uint32_t nibble = lattice.nibble(values[k]);
        panel[int4_byte(k, output)] |= static_cast<std::byte>(nibble << int4_shift(k));
      }
    }
  }
}

float integer_weight(const std::byte* panel, WeightFormat format, uint32_t k, uint32_t lane) {
  const GroupLayout& layout = format == WeightFormat::kInt8 ? kInt8Group : kInt4Group;
  const std::byte* group = panel + k / kGroup * layout.bytes;
  const auto* scales = reinterpret_cast<const uint16_t*>(group);
  const float scale = widen_f16(scales[lane]);
  if (format == WeightFormat::kInt8) {
    return scale * static_cast<int8_t>(group[int8_byte(k % kGroup, lane)]);
  }
  const auto byte = static_cast<uint32_t>(group[int4_byte(k % kGroup, lane)]);
  const auto nibble = static_cast<float>(byte >> int4_shift(k) & 15u);
  return scale * nibble + widen_f16(scales[kPanelOutputs + lane]);
}

}  // namespace

size_t panel_bytes(WeightFormat format, uint32_t depth) {
  switch (format) {
    case WeightFormat::kF32: return size_t{depth} * kPanelOutputs * 4;
    case WeightFormat::kBf16: return size_t{depth} * kPanelOutputs * 2;
    case WeightFormat::kFp8:
      return size_t{num_stretches(depth)} * kPanelOutputs * 4 + size_t{depth} * kPanelOutputs;
    case WeightFormat::kInt8: return num_groups(depth) * kInt8Group.bytes;
    case WeightFormat::kInt4: return num_groups(depth) * kInt4Group.bytes;
  }
  assert(!"unknown format");
  return 0;
}

void pack_panel(WeightFormat format, const float* const* rows, uint32_t depth, std::byte* panel) {
  const Source source{rows, depth};
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16: return pack_floats(source, format, panel);
    case WeightFormat::kFp8: return pack_fp8(source, panel);
    case WeightFormat::kInt8: return pack_int8(source, panel);
    case WeightFormat::kInt4: return pack_int4(source, panel);
  }
  assert(!"unknown format");
}

void pack_fp8_panel(const uint8_t* const* rows, const float* const* scales, uint32_t depth,
                    std::byte* panel) {
  for (uint32_t output = 0; output < kPanelOutputs; ++output) {
    const uint8_t* row = rows[output];
    for (uint32_t k = 0; k < depth; ++k) {
      const StretchView stretch(panel, k / kFp8Stretch);
      const uint8_t code = row == nullptr ? 0 : row[k];
      assert((code & 0x7f) != E4m3::kNan);
      stretch.values(k % kFp8Stretch)[output] = code;
    }
    for (uint32_t i = 0; i < num_stretches(depth); ++i) {
      const StretchView stretch(panel, i);
      stretch.scales()[output] = row == nullptr ? 0.0f : scales[output][i] * 256.0f;
    }
  }
}

void unpack_output(const std::byte* panels, WeightFormat format, uint32_t depth, uint32_t output,
                   float* row) {
  const std::byte* panel = panels + output / kPanelOutputs * panel_bytes(format, depth);
  const uint32_t lane = output % kPanelOutputs;
  for (uint32_t k = 0; k < depth; ++k) {
    const size_t at = size_t{k} * kPanelOutputs + lane;
    switch (format) {
      case WeightFormat::kF32: row[k] = reinterpret_cast<const float*>(panel)[at]; break;
      case WeightFormat::kBf16:
        row[k] = widen_bf16(reinterpret_cast<const uint16_t*>(panel)[at]);
        break;
      case WeightFormat::kFp8: {
        const StretchView stretch(const_cast<std::byte*>(panel), k / kFp8Stretch);
        row[k] = E4m3::decode(stretch.values(k % kFp8Stretch)[lane]) *
                 (stretch.scales()[lane] * 0x1p-8f);
        break;
      }
      default: row[k] = integer_weight(panel, format, k, lane);
    }
  }
}

}  // namespace crossdock::kernels
