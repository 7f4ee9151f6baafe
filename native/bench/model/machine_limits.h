// What the machine can do at this moment on all the threads at once: the denominators of the engine
// bench. Measured beside every figure, because a shared machine changes from second to second, and
// in small pieces that whoever is free takes, as the executor does, so that a thread which loses
// its processor lowers both alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/thread_pool.h"

namespace crossdock::bench {

class Limits {
 public:
  explicit Limits(ThreadPool& pool);

  // Fused multiply-adds at the width that the kernels use, in GFLOP/s.
  double fma_gflops();
  // Reading memory far larger than any cache, in GB/s.
  double read_gbytes_per_s();

 private:
  ThreadPool& pool_;
  PageBuffer memory_;
};

double now_s();
double median(std::vector<double> values);

// Each returns something that depends on all of its work, so that none of it is left out.
float fma_chains(uint64_t iterations);
double fma_flops_per_iteration();
float sum_of(const float* values, size_t count);
#if defined(__x86_64__)
float fma_chains_avx2(uint64_t iterations);
float sum_of_avx2(const float* values, size_t count);
#endif

}  // namespace crossdock::bench
