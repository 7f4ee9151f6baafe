// Weights into panels, and one output back out of them.
#include <cassert>

#include "crossdock/kernels/math.h"
#include "crossdock/kernels/product.h"

namespace crossdock::kernels {

size_t panel_bytes(WeightFormat format, uint32_t depth) {
  switch (format) {
    case WeightFormat::kF32: return size_t{depth} * kPanelOutputs * 4;
    case WeightFormat::kBf16: return size_t{depth} * kPanelOutputs * 2;
    case WeightFormat::kFp8:
      return size_t{(depth + kFp8Stretch - 1) / kFp8Stretch} * kPanelOutputs * 4 +
             size_t{depth} * kPanelOutputs;
    case WeightFormat::kInt8: return size_t{num_groups(depth)} * kPanelOutputs * (2 + kGroup);
    case WeightFormat::kInt4: return size_t{num_groups(depth)} * kPanelOutputs * (4 + kGroup / 2);
  }
  assert(!"unknown format");
  return 0;
}

void unpack_output(const std::byte* panels, WeightFormat format, uint32_t depth, uint32_t output,
                   float* row) {
  const size_t first =
      size_t{output / kPanelOutputs} * depth * kPanelOutputs + output % kPanelOutputs;
  if (format == WeightFormat::kF32) {
    const auto* from = reinterpret_cast<const float*>(panels) + first;
    for (uint32_t k = 0; k < depth; ++k) row[k] = from[size_t{k} * kPanelOutputs];
    return;
  }
  const auto* from = reinterpret_cast<const uint16_t*>(panels) + first;
  for (uint32_t k = 0; k < depth; ++k) row[k] = widen_bf16(from[size_t{k} * kPanelOutputs]);
}

}  // namespace crossdock::kernels
