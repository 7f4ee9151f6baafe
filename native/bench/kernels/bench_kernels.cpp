// The products alone, on one thread: every format and variant over numbers of rows, each beside its
// limit, the slower of arithmetic at the peak and weights at the speed of memory.
//
//   bench_kernels [--format int4] [--kernels avx2] [--rows 1] [--passes 100]
//
// With --passes nothing is timed: the product runs that often, to be counted by callgrind or perf.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../model/machine_limits.h"
#include "crossdock/kernels/kernels.h"

namespace crossdock::bench {
namespace {

using kernels::Product;
using kernels::WeightFormat;

constexpr uint32_t kDepth = 2048;
constexpr uint32_t kUnits = 32;
constexpr uint32_t kOutputs = kUnits * kernels::kPanelOutputs;
constexpr size_t kWeightBytes = size_t{192} << 20;  // more than any cache holds
constexpr uint32_t kRowsMax = 192;
constexpr double kSampleSeconds = 2e-3;
constexpr int kSamples = 25;

struct Format {
  const char* name;
  WeightFormat format;
};
constexpr Format kFormats[] = {{"f32", WeightFormat::kF32},
                               {"bf16", WeightFormat::kBf16},
                               {"fp8", WeightFormat::kFp8},
                               {"int8", WeightFormat::kInt8},
                               {"int4", WeightFormat::kInt4}};

struct Variant {
  const char* name;
  const PeakLoops* peaks;
};
#if defined(__x86_64__)
constexpr Variant kVariants[] = {{"avx512", &kPeakAvx512}, {"avx2", &kPeakAvx2}};
#else
constexpr std::array<Variant, 0> kVariants;
#endif

struct Options {
  std::string format;
  std::string kernels;
  uint32_t rows = 0;
  uint32_t passes = 0;
};

// Matrices of one format that take turns, so that their weights come from memory, and rows.
class Operands {
 public:
  explicit Operands(WeightFormat format)
      : format_(format),
        panel_bytes_(kernels::panel_bytes(format, kDepth)),
        num_matrices_(std::max<size_t>(1, kWeightBytes / (kUnits * panel_bytes_))),
        weights_(PageBuffer::allocate(num_matrices_ * kUnits * panel_bytes_).value()),
        x_(size_t{kRowsMax} * kDepth),
        y_(size_t{kRowsMax} * kOutputs),
        scratch_(kernels::product_scratch_floats(kDepth)) {
    std::vector<float> weights(kDepth);
    for (uint32_t k = 0; k < kDepth; ++k)
      weights[k] = static_cast<float>(k * 37 % 101) * 0.01f - 0.5f;
    const std::vector<const float*> outputs(kernels::kPanelOutputs, weights.data());
    kernels::pack_panel(format, outputs.data(), kDepth, weights_.data());
    for (size_t i = 1; i < num_matrices_ * kUnits; ++i) {
      std::memcpy(weights_.data() + i * panel_bytes_, weights_.data(), panel_bytes_);
    }
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i * 41 % 103) * 0.01f - 0.5f;
    const uint32_t groups = kernels::num_groups(kDepth);
    values_.resize(size_t{kRowsMax} * groups * kernels::kGroup);
    scales_.resize(kRowsMax);
    sums_.resize(size_t{kRowsMax} * groups);
    quantised_ = {values_.data(), scales_.data(), sums_.data(), groups};
    quantise(kRowsMax);
  }

  double num_weights() const { return double{kDepth} * kOutputs; }
  double weight_bytes() const { return static_cast<double>(kUnits * panel_bytes_); }

  void quantise(uint32_t num_rows) {
    for (uint32_t row = 0; row < num_rows; ++row) {
      kernels::quantise_row(x_.data() + size_t{row} * kDepth, kDepth, row, quantised_);
    }
  }

  // The rows times the next matrix.
  void multiply(const kernels::Kernels& kernels, uint32_t num_rows) {
    Product job{.x = x_.data(), .x_stride = kDepth, .quantised = quantised_};
    job.num_rows = num_rows;
    job.tile_rows = kernels::product_tile_rows(kDepth);
    job.depth = kDepth;
    job.panels = weights_.data() + next_ * kUnits * panel_bytes_;
    job.format = format_;
    job.num_outputs = kOutputs;
    job.y = y_.data();
    job.y_stride = kOutputs;
    kernels.product(job, 0, kUnits, scratch_.data());
    next_ = (next_ + 1) % num_matrices_;
  }

 private:
  WeightFormat format_;
  size_t panel_bytes_;
  size_t num_matrices_;
  PageBuffer weights_;
  std::vector<float> x_;
  std::vector<float> y_;
  std::vector<float> scratch_;
  std::vector<int16_t> values_;
  std::vector<float> scales_;
  std::vector<float> sums_;
  kernels::QuantisedRows quantised_;
  size_t next_ = 0;
};

// Seconds of this thread's processor time: what others take on a shared machine does not count.
double cpu_now_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// A piece of work that is repeated until a sample is long enough for the clock.
class Timed {
 public:
  template <typename Pass>
  explicit Timed(Pass pass) : pass_(std::move(pass)) {
    const double start = cpu_now_s();
    for (num_passes_ = 0; cpu_now_s() - start < kSampleSeconds; ++num_passes_) pass_();
  }
  double seconds_a_pass() const {
    const double start = cpu_now_s();
    for (int i = 0; i < num_passes_; ++i) pass_();
    return (cpu_now_s() - start) / num_passes_;
  }

 private:
  std::function<void()> pass_;
  int num_passes_ = 0;
};

// What the processor can do, at the width of a variant.
class Peaks {
 public:
  Peaks(const PeakLoops& loops, bool integer)
      : arithmetic_([&loops, integer] {
          if (integer) {
            sink = static_cast<float>(loops.madd(kIterations));
          } else {
            sink = loops.fma(kIterations);
          }
        }),
        ops_(kIterations * (integer ? loops.ops_per_iteration : loops.flops_per_iteration)),
        memory_(PageBuffer::allocate(kWeightBytes).value()),
        reading_([this, &loops] {
          sink = loops.sum(reinterpret_cast<const float*>(memory_.data() + next_), kPieceFloats);
          next_ = (next_ + kPieceFloats * sizeof(float)) % kWeightBytes;
        }) {
    std::memset(memory_.data(), 1, kWeightBytes);
  }
  double gops() const { return ops_ / arithmetic_.seconds_a_pass() / 1e9; }
  double read_gbytes_per_s() const {
    return kPieceFloats * sizeof(float) / reading_.seconds_a_pass() / 1e9;
  }

 private:
  static constexpr uint64_t kIterations = 10'000;
  static constexpr size_t kPieceFloats = size_t{1} << 20;
  static inline volatile float sink;

  Timed arithmetic_;
  double ops_;
  PageBuffer memory_;
  size_t next_ = 0;
  Timed reading_;
};

void print_product(const std::string& name, double gflop, const Timed& product,
                   const Operands& operands, const Peaks& peaks) {
  std::vector<double> seconds, gops, reads, ratios;
  for (int i = 0; i < kSamples; ++i) {
    gops.push_back(peaks.gops());
    reads.push_back(peaks.read_gbytes_per_s());
    seconds.push_back(product.seconds_a_pass());
    const double limit_s =
        std::max(gflop / gops.back(), operands.weight_bytes() / 1e9 / reads.back());
    ratios.push_back(limit_s / seconds.back());
  }
  const double ratio = median(ratios), value = gflop / median(seconds);
  std::printf(
      "{\"bench\": \"kernels\", \"case\": \"%s\", \"value\": %.1f, \"unit\": \"GFLOP/s\", "
      "\"limit\": %.1f, \"ratio\": %.2f, \"gweights_per_s\": %.2f, \"peak_gops\": %.1f, "
      "\"read_gbytes_per_s\": %.1f}\n",
      name.c_str(), value, value / ratio, ratio, operands.num_weights() / median(seconds) / 1e9,
      median(gops), median(reads));
  std::fflush(stdout);
}

void print_quantise(Operands& operands) {
  constexpr uint32_t kRows = 16;
  const Timed timed([&] { operands.quantise(kRows); });
  std::vector<double> seconds;
  for (int i = 0; i < kSamples; ++i) seconds.push_back(timed.seconds_a_pass());
  std::printf(
      "{\"bench\": \"kernels\", \"case\": \"quantise a row of %u\", \"value\": %.3f, "
      "\"unit\": \"us\"}\n",
      kDepth, median(seconds) / kRows * 1e6);
}

void run(const Options& options, const Variant& variant, const Format& format) {
  const kernels::Kernels& kernels = *kernels::select_kernels(variant.name).value();
  const bool integer = kernels::is_integer(format.format);
  Operands operands(format.format);
  std::optional<Peaks> peaks;
  if (options.passes == 0) peaks.emplace(*variant.peaks, integer);
  for (const uint32_t rows : {1u, 2u, 4u, 8u, 16u, 64u, 192u}) {
    if (options.rows != 0 && options.rows != rows) continue;
    for (uint32_t i = 0; i < options.passes; ++i) operands.multiply(kernels, rows);
    if (options.passes != 0) continue;
    const Timed timed([&] { operands.multiply(kernels, rows); });
    const std::string name = std::string(format.name) + ", " + variant.name + ", " +
                             std::to_string(rows) + (rows == 1 ? " row" : " rows");
    print_product(name, 2.0 * operands.num_weights() * rows / 1e9, timed, operands, *peaks);
  }
  if (format.format == WeightFormat::kInt8 && options.passes == 0) print_quantise(operands);
}

}  // namespace
}  // namespace crossdock::bench

int main(int argc, char** argv) {
  crossdock::bench::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--format") {
      options.format = value;
    } else if (name == "--kernels") {
      options.kernels = value;
    } else if (name == "--rows") {
      options.rows = static_cast<uint32_t>(std::strtoul(value, nullptr, 10));
    } else if (name == "--passes") {
      options.passes = static_cast<uint32_t>(std::strtoul(value, nullptr, 10));
    } else {
      std::fprintf(stderr, "bench_kernels: unknown option %s\n", argv[i]);
      return 2;
    }
  }
  for (const auto& variant : crossdock::bench::kVariants) {
    const bool wanted = options.kernels.empty() || options.kernels == variant.name;
    if (!wanted || !crossdock::kernels::select_kernels(variant.name).ok()) continue;
    for (const auto& format : crossdock::bench::kFormats) {
      if (!options.format.empty() && options.format != format.name) continue;
      crossdock::bench::run(options, variant, format);
    }
  }
  return 0;
}
