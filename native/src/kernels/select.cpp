#include "select.h"

#include "crossdock/kernels/kernels.h"
#include "crossdock/sys/cpu.h"

namespace crossdock::kernels {

Result<const Kernels*> select_kernels(const std::string& name) {
  const bool has_avx2 = kHasAvx2Build && cpu_features().avx2_fma;
  if (name == "scalar") return &scalar_kernels();
  if (name == "avx2") {
    if (has_avx2) return &avx2_kernels();
    return Status(StatusCode::kFailedPrecondition,
                  "kernels \"avx2\" need a processor with AVX2 and FMA; use \"auto\"");
  }
  if (name == "auto") return has_avx2 ? &avx2_kernels() : &scalar_kernels();
  return Status(StatusCode::kInvalidArgument,
                "kernels must be \"auto\", \"avx2\" or \"scalar\", not \"" + name + "\"");
}

}  // namespace crossdock::kernels
