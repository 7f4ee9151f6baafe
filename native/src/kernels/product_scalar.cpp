// The reference of the products: one loop an output, written to be read.
#include <algorithm>
#include <cmath>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"
#include "panel_layout.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

float float_chain(const Product& job, const float* x, const std::byte* panel, uint32_t lane) {
  float sum = 0.0f;
  for (uint32_t k = 0; k < job.depth; ++k) {
    const size_t at = size_t{k} * kPanelOutputs + lane;
    const float weight = job.format == WeightFormat::kF32
                             ? reinterpret_cast<const float*>(panel)[at]
                             : widen_bf16(reinterpret_cast<const uint16_t*>(panel)[at]);
    sum = std::fma(x[k], weight, sum);
  }
  return sum;
}

float fp8_chain(const Product& job, const float* x, const std::byte* panel, uint32_t lane) {
  float total = 0.0f;
  for (uint32_t first = 0; first < job.depth; first += kFp8Stretch) {
    const float scale = reinterpret_cast<const float*>(panel)[lane];
    const auto* codes = reinterpret_cast<const uint8_t*>(panel + kPanelOutputs * sizeof(float));
    const uint32_t count = std::min(kFp8Stretch, job.depth - first);
    float sum = 0.0f;
    for (uint32_t k = 0; k < count; ++k) {
      const float weight = E4m3::decode(codes[k * kPanelOutputs + lane]) * 0x1p-8f;
      sum = std::fma(x[first + k], weight, sum);
    }
    total = std::fma(sum, scale, total);
    panel += kPanelOutputs * (sizeof(float) + kFp8Stretch);
  }
  return total;
}

float integer_chain(const Product& job, uint32_t row, const std::byte* panel, uint32_t lane) {
  const QuantisedRows& rows = job.quantised;
  const bool wide = job.format == WeightFormat::kInt8;
  float total = 0.0f;
  for (uint32_t g = 0; g < rows.groups; ++g) {
    const size_t group = size_t{row} * rows.groups + g;
    const int16_t* x = rows.values + group * kGroup;
    const auto* scales = reinterpret_cast<const uint16_t*>(panel);
    int32_t sum = 0;
    for (uint32_t k = 0; k < kGroup; ++k) {
      const int32_t weight =
          wide ? static_cast<int8_t>(panel[int8_byte(k, lane)])
               : static_cast<int32_t>(panel[int4_byte(k, lane)]) >> int4_shift(k) & 15;
      sum += x[k] * weight;
    }
    total = std::fma(static_cast<float>(sum), widen_f16(scales[lane]), total);
    if (!wide) total = std::fma(widen_f16(scales[kPanelOutputs + lane]), rows.sums[group], total);
    panel += wide ? kInt8Group.bytes : kInt4Group.bytes;
  }
  return total * rows.scales[row];
}

// One output: lane `lane` of panel `index`.
float chain(const Product& job, uint32_t row, size_t index, uint32_t lane) {
  const std::byte* panel = job.panels + index * panel_bytes(job.format, job.depth);
  const float* x = job.x + row * job.x_stride;
  if (is_integer(job.format)) return integer_chain(job, row, panel, lane);
  if (job.format == WeightFormat::kFp8) return fp8_chain(job, x, panel, lane);
  return float_chain(job, x, panel, lane);
}

}  // namespace

void product_scalar(const Product& job, uint32_t unit_begin, uint32_t unit_end,
                    float* /*scratch*/) {
  for (uint32_t row = 0; row < job.num_rows; ++row) {
    for (uint32_t unit = unit_begin; unit < unit_end; ++unit) {
      for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
        const uint32_t output = unit * kPanelOutputs + lane;
        if (output >= job.num_outputs) break;
        float& y = job.y[row * job.y_stride + output];
        switch (job.epilogue) {
          case Epilogue::kStore: y = chain(job, row, unit, lane); break;
          case Epilogue::kAdd: y += chain(job, row, unit, lane); break;
          case Epilogue::kSwiGlu:
            y = silu_f32(chain(job, row, 2 * size_t{unit}, lane)) *
                chain(job, row, 2 * size_t{unit} + 1, lane);
            break;
        }
      }
    }
  }
}

}  // namespace crossdock::kernels
