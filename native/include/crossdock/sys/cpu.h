// What the processor we run on can do, asked once.
#pragma once

namespace crossdock {

struct CpuFeatures {
  bool avx2_fma = false;  // AVX2 and FMA, with the OS saving the wide registers
};

// Thread-safe; the answer never changes.
const CpuFeatures& cpu_features();

}  // namespace crossdock
