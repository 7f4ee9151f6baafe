// The reference of the products: one loop an output, written to be read.
#include <cmath>

#include "crossdock/kernels/math.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

float element(const std::byte* base, WeightFormat type, size_t index) {
  if (type == WeightFormat::kF32) return reinterpret_cast<const float*>(base)[index];
  return widen_bf16(reinterpret_cast<const uint16_t*>(base)[index]);
}

// The chain of one output: panel `panel`, lane `lane`.
float chain(const Product& job, uint32_t row, size_t panel, uint32_t lane) {
  const float* x = job.x + row * job.x_stride;
  float sum = 0.0f;
  for (uint32_t k = 0; k < job.depth; ++k) {
    const size_t index = (panel * job.depth + k) * kPanelOutputs + lane;
    sum = std::fma(x[k], element(job.panels, job.format, index), sum);
  }
  return sum;
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
