#include "row_quantiser.h"
#include "variants.h"

namespace crossdock::kernels {

void quantise_row_avx2(const float* x, uint32_t depth, uint32_t row, const QuantisedRows& to) {
  quantise(x, depth, row, to);
}

}  // namespace crossdock::kernels
