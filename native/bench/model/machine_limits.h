// What the machine can do at this moment on all the threads at once: the denominators of the engine
// bench. Measured beside every figure, because a shared machine changes from second to second, and
// in small pieces that whoever is free takes, as the executor does, so that a thread which loses
// its processor lowers both alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/thread_pool.h"

namespace crossdock::bench {

// Loops that do nothing but one thing, at one vector width. Each returns something that depends on
// all of its work, so that none of it is left out.
struct PeakLoops {
  // Chains of f32 fused multiply-adds.
  float (*fma)(uint64_t iterations);
  double flops_per_iteration;
  // Chains of 16-bit products summed in 32 bits, what the integer weight formats are made of.
  int32_t (*madd)(uint64_t iterations);
  double ops_per_iteration;  // a product and its sum are two
  float (*sum)(const float* values, size_t count);
};

#if defined(__x86_64__)
extern const PeakLoops kPeakAvx2;
extern const PeakLoops kPeakAvx512;
#endif

class Limits {
 public:
  // `kernels`: the name of the variant that is measured ("scalar" | "avx2" | "avx512"): its width.
  Limits(ThreadPool& pool, const std::string& kernels);

  double fma_gflops();
  double integer_gops();
  // Reading memory far larger than any cache.
  double read_gbytes_per_s();

 private:
  template <typename Loop>
  double rate(double amount_per_iteration, const Loop& loop);

  ThreadPool& pool_;
  const PeakLoops& loops_;
  PageBuffer memory_;
};

double now_s();
double median(std::vector<double> values);

}  // namespace crossdock::bench
