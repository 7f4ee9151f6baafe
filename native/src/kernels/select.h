// The variants compiled in. One file a variant, each with its own instruction-set flags; that file
// must call no inline function of a shared header, or the linker might keep its copy for everyone.
#pragma once

#include "crossdock/kernels/kernels.h"

namespace crossdock::kernels {

#if defined(__x86_64__)
inline constexpr bool kHasAvx2Build = true;
const Kernels& avx2_kernels();
#else
inline constexpr bool kHasAvx2Build = false;
inline const Kernels& avx2_kernels() { return scalar_kernels(); }
#endif

}  // namespace crossdock::kernels
