// The variants compiled in. Each has files of its own with its own instruction-set flags; those
// call no inline function of a shared header, or the linker might keep their copy for everyone.
#pragma once

#include "crossdock/kernels/kernels.h"

namespace crossdock::kernels {

void product_scalar(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch);
extern const AttentionKernels kAttentionScalar;

#if defined(__x86_64__)
void product_avx2(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch);
void quantise_row_avx2(const float* x, uint32_t depth, uint32_t row, const QuantisedRows& to);
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
void product_avx512(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch);
#endif

}  // namespace crossdock::kernels
