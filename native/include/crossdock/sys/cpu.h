// What the processor we run on can do, asked once.
#pragma once

#include <cstdint>
#include <vector>

namespace crossdock {

struct CpuFeatures {
  // With the OS saving the wide registers.
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL and VNNI of AVX-512 besides
};

// Thread-safe; the answer never changes.
const CpuFeatures& cpu_features();

// The processors that the calling thread may run on; empty where the system does not say.
std::vector<uint32_t> allowed_cpus();
// Keeps the calling thread on one of them; a system that refuses leaves it where it is.
void pin_to_cpu(uint32_t cpu);

}  // namespace crossdock
