// How near the executor comes to what the machine can do.
//
//   bench_engine [--model DIR] [--weight-dtype D] [--weight-cache DIR] [--kv-dtype D]
//                [--kernels K] [--threads N] [--repeats N] [--case BEGINNING[,BEGINNING...]]
//
// The cases of latent attention (mla_...) run on a model of their own; --model DIR is the other
// cases' unless it has latent attention.
//
// Prints one JSON line a case: value, the limit measured in the same seconds on the same threads,
// and the median ratio over the repeats.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <thread>

#include "crossdock/kernels/kernels.h"
#include "report.h"

namespace crossdock::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_engine [--model DIR] [--weight-dtype auto|f32|bf16|fp8|int8|int4]\n"
    "                    [--weight-cache DIR] [--kv-dtype f32|bf16|fp8_e4m3|fp8_e5m2]\n"
    "                    [--kernels NAME] [--threads N] [--repeats N]\n"
    "                    [--case BEGINNING[,BEGINNING...]]\n";

std::optional<WeightDtype> weight_dtype_of(const std::string& text) {
  for (const WeightDtype dtype : kAllWeightDtypes) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> kv_dtype_of(const std::string& text) {
  for (const DType dtype : kAllDTypes) {
    if (text == name(dtype)) return dtype;
  }
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

bool parse(int argc, char** argv, Options& options) {
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") {
      options.model = value;
    } else if (name == "--weight-dtype" && weight_dtype_of(value)) {
      options.weight_dtype = *weight_dtype_of(value);
    } else if (name == "--weight-cache") {
      options.weight_cache = value;
    } else if (name == "--kv-dtype" && kv_dtype_of(value)) {
      options.kv_dtype = *kv_dtype_of(value);
    } else if (name == "--kernels" && kernels::select_kernels(value).ok()) {
      options.kernels = value;
    } else if (name == "--threads") {
      options.threads = static_cast<uint32_t>(std::atoi(value.c_str()));
    } else if (name == "--repeats") {
      options.repeats = std::atoi(value.c_str());
    } else if (name == "--case") {
      options.cases = split(value);
    } else {
      return false;
    }
  }
  return options.threads >= 1 && options.repeats >= 1;
}

int main_with(Options options) {
  options.kernels = kernels::select_kernels(options.kernels).value()->name;
  ThreadPool pool(options.threads);
  Limits limits(pool, options.kernels);
  const Report report(options, limits);
  bench_products(report, options, pool);
  bench_attention(report, options, pool);
  const bool failed = bench_model(report, options, pool) != 0;
  return bench_mla(report, options) != 0 || failed ? 1 : 0;
}

}  // namespace
}  // namespace crossdock::bench

int main(int argc, char** argv) {
  crossdock::bench::Options options;
  if (!crossdock::bench::parse(argc, argv, options)) {
    std::fputs(crossdock::bench::kUsage, stderr);
    return 2;
  }
  return crossdock::bench::main_with(options);
}
