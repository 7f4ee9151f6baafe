#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

namespace crossdock::bench {
namespace {

constexpr int kChains = 8;
constexpr size_t kReadFloats = size_t{96} << 20;  // 384 MiB
constexpr double kPieceFlops = 2e7;               // of a peak loop: a fifth of a millisecond
constexpr size_t kPiecesPerThread = 64;

std::atomic<double> sink;

float fma_scalar(uint64_t iterations) {
  float chains[kChains] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (uint64_t n = 0; n < iterations; ++n) {
    for (float& chain : chains) chain = std::fma(chain, 0.999f, 0.001f);
  }
  float sum = 0.0f;
  for (const float chain : chains) sum += chain;
  return sum;
}

int32_t madd_scalar(uint64_t iterations) {
  uint32_t chains[kChains] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (uint64_t n = 0; n < iterations; ++n) {
    for (uint32_t& chain : chains) chain = (chain & 0x7fff) * 3 + chain;
  }
  uint32_t sum = 0;
  for (const uint32_t chain : chains) sum += chain;
  return static_cast<int32_t>(sum);
}

float sum_scalar(const float* values, size_t count) {
  float sums[kChains] = {};
  for (size_t i = 0; i + kChains <= count; i += kChains) {
    for (size_t j = 0; j < kChains; ++j) sums[j] += values[i + j];
  }
  float sum = 0.0f;
  for (const float part : sums) sum += part;
  return sum;
}

const PeakLoops kPeakScalar = {fma_scalar, 2.0 * kChains, madd_scalar, 2.0 * kChains, sum_scalar};

const PeakLoops& loops_of(const std::string& kernels) {
#if defined(__x86_64__)
  if (kernels == "avx512") return kPeakAvx512;
  if (kernels == "avx2") return kPeakAvx2;
#endif
  return kPeakScalar;
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Limits::Limits(ThreadPool& pool, const std::string& kernels)
    : pool_(pool), loops_(loops_of(kernels)) {
  auto memory = PageBuffer::allocate(kReadFloats * sizeof(float));
  assert(memory.ok());
  memory_ = std::move(memory).value();
  std::memset(memory_.data(), 1, memory_.size());
}

template <typename Loop>
double Limits::rate(double amount_per_iteration, const Loop& loop) {
  const auto iterations = static_cast<uint64_t>(kPieceFlops / amount_per_iteration);
  const size_t pieces = kPiecesPerThread * pool_.num_threads();
  const double start = now_s();
  pool_.parallel_for(pieces, 1, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i) sink = loop(iterations);
  });
  const double amount = static_cast<double>(iterations * pieces) * amount_per_iteration;
  return amount / (now_s() - start) / 1e9;
}

double Limits::fma_gflops() { return rate(loops_.flops_per_iteration, loops_.fma); }

double Limits::integer_gops() { return rate(loops_.ops_per_iteration, loops_.madd); }

double Limits::read_gbytes_per_s() {
  constexpr size_t kPiece = size_t{1} << 18;  // 1 MiB
  const auto* floats = reinterpret_cast<const float*>(memory_.data());
  const double start = now_s();
  pool_.parallel_for(kReadFloats / kPiece, 1, [&](size_t begin, size_t end, uint32_t) {
    sink = loops_.sum(floats + begin * kPiece, (end - begin) * kPiece);
  });
  return static_cast<double>(kReadFloats * sizeof(float)) / (now_s() - start) / 1e9;
}

}  // namespace crossdock::bench
