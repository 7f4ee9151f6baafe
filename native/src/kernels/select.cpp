#include <span>
#include <string>

#include "crossdock/kernels/kernels.h"
#include "crossdock/sys/cpu.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

struct Variant {
  Kernels kernels;
  bool runs_here;
  const char* needs;
};

// The widest first; the last runs everywhere.
std::span<const Variant> variants() {
  static const Variant all[] = {
#if defined(__x86_64__)
      {{"avx512", product_avx512, kAttentionAvx512},
       cpu_features().avx512,
       "AVX-512 (F, BW, DQ, VL, VNNI)"},
      {{"avx2", product_avx2, kAttentionAvx2}, cpu_features().avx2, "AVX2, FMA and F16C"},
#endif
      {{"scalar", product_scalar, kAttentionScalar}, true, ""},
  };
  return all;
}

}  // namespace

const Kernels& scalar_kernels() { return variants().back().kernels; }

Result<const Kernels*> select_kernels(const std::string& name) {
  std::string names = "\"auto\"";
  for (const Variant& variant : variants()) {
    if (name == variant.kernels.name && !variant.runs_here) {
      return Status(
          StatusCode::kFailedPrecondition,
          "kernels \"" + name + "\" need a processor with " + variant.needs + "; use \"auto\"");
    }
    if ((name == "auto" || name == variant.kernels.name) && variant.runs_here) {
      return &variant.kernels;
    }
    names += std::string(", \"") + variant.kernels.name + "\"";
  }
  return Status(StatusCode::kInvalidArgument,
                "kernels must be one of " + names + ", not \"" + name + "\"");
}

}  // namespace crossdock::kernels
