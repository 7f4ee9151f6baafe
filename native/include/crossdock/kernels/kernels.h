// The arithmetic of the model in several variants, chosen at run time, all bit-identical.
//
// The order of every reduction is fixed (product.h, attention.h); the scalar variant is the
// reference and is kept for ever. All functions are pure, thread-safe and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "crossdock/kernels/block_attention.h"
#include "crossdock/kernels/product.h"
#include "crossdock/sys/status.h"

namespace crossdock::kernels {

struct Kernels {
  const char* name;
  // Units [unit_begin, unit_end) of the product.
  void (*product)(const Product& product, uint32_t unit_begin, uint32_t unit_end, float* scratch);
  AttentionKernels attention;
};

const Kernels& scalar_kernels();
// "auto": the widest that this processor runs; "avx512" (F, BW, DQ, VL and VNNI) | "avx2" |
// "scalar" by name. INVALID_ARGUMENT for an unknown name, FAILED_PRECONDITION where the processor
// lacks the instructions.
Result<const Kernels*> select_kernels(const std::string& name);

}  // namespace crossdock::kernels
