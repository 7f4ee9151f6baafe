#include "crossdock/sys/cpu.h"

namespace crossdock {

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    CpuFeatures found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    found.avx2_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return found;
  }();
  return features;
}

}  // namespace crossdock
