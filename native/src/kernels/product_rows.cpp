// The activations of the integer formats.
#include "crossdock/kernels/product.h"
#include "crossdock/sys/cpu.h"
#include "row_quantiser.h"
#include "variants.h"

namespace crossdock::kernels {

void quantise_row(const float* x, uint32_t depth, uint32_t row, const QuantisedRows& to) {
#if defined(__x86_64__)
  if (cpu_features().avx2) return quantise_row_avx2(x, depth, row, to);
#endif
  quantise(x, depth, row, to);
}

}  // namespace crossdock::kernels
