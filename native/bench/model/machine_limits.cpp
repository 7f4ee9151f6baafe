#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "crossdock/sys/cpu.h"

namespace crossdock::bench {
namespace {

constexpr int kScalarChains = 8;
constexpr size_t kReadFloats = size_t{96} << 20;  // 384 MiB

bool wide() { return cpu_features().avx2_fma; }

std::atomic<float> sink;

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

float fma_chains(uint64_t iterations) {
#if defined(__x86_64__)
  if (wide()) return fma_chains_avx2(iterations);
#endif
  float chains[kScalarChains] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (uint64_t n = 0; n < iterations; ++n) {
    for (float& chain : chains) chain = std::fma(chain, 0.999f, 0.001f);
  }
  float sum = 0.0f;
  for (const float chain : chains) sum += chain;
  return sum;
}

double fma_flops_per_iteration() { return wide() ? 12 * 8 * 2.0 : kScalarChains * 2.0; }

float sum_of(const float* values, size_t count) {
#if defined(__x86_64__)
  if (wide()) return sum_of_avx2(values, count);
#endif
  float sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += values[i + j];
  }
  float sum = 0.0f;
  for (const float part : sums) sum += part;
  return sum;
}

Limits::Limits(ThreadPool& pool) : pool_(pool) {
  auto memory = PageBuffer::allocate(kReadFloats * sizeof(float));
  assert(memory.ok());
  memory_ = std::move(memory).value();
  std::memset(memory_.data(), 1, memory_.size());
}

double Limits::fma_gflops() {
  const uint64_t iterations = wide() ? 100'000 : 10'000;
  const size_t pieces = 64 * pool_.num_threads();
  const double start = now_s();
  pool_.parallel_for(pieces, 1, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i) sink = fma_chains(iterations);
  });
  const double flops = static_cast<double>(iterations * pieces) * fma_flops_per_iteration();
  return flops / (now_s() - start) / 1e9;
}

double Limits::read_gbytes_per_s() {
  constexpr size_t kPiece = size_t{1} << 18;  // 1 MiB
  const auto* floats = reinterpret_cast<const float*>(memory_.data());
  const double start = now_s();
  pool_.parallel_for(kReadFloats / kPiece, 1, [&](size_t begin, size_t end, uint32_t) {
    sink = sum_of(floats + begin * kPiece, (end - begin) * kPiece);
  });
  return static_cast<double>(kReadFloats * sizeof(float)) / (now_s() - start) / 1e9;
}

}  // namespace crossdock::bench
