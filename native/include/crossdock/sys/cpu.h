// What the processor we run on can do, asked once.
#pragma once

namespace crossdock {

struct CpuFeatures {
  // With the OS saving the wide registers.
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL and VNNI of AVX-512 besides
};

// Thread-safe; the answer never changes.
const CpuFeatures& cpu_features();

}  // namespace crossdock
