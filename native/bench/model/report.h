// Cases of the engine bench: each is timed beside its limit and printed as one JSON line.
#pragma once

#include <string>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/model/executor.h"
#include "machine_limits.h"

namespace crossdock::bench {

struct Options {
  std::string model;
  WeightDtype weight_dtype = WeightDtype::kAuto;
  std::string weight_cache;  // a folder; empty: weights are quantised at every start
  DType kv_dtype = DType::kBf16;
  std::string kernels = "auto";
  uint32_t threads = 0;
  int repeats = 7;
  std::vector<std::string> cases;  // beginnings of names; empty: all
};

// What a case does. Its limit is the slower of arithmetic at the peak and bytes at their rate.
struct Work {
  double amount = 0;  // what the value counts: tokens, or GB
  const char* unit = "tok/s";
  double gflop = 0;
  double gbytes = 0;            // read from memory
  double gbytes_per_s_max = 0;  // how fast the instructions take bytes from the cache; 0: not asked
  bool integer = false;         // the products are of integers: their peak is printed, too
};

class Report {
 public:
  Report(const Options& options, Limits& limits) : options_(options), limits_(limits) {}

  bool wants(const std::string& name) const;
  int repeats() const { return options_.repeats; }

  template <typename Run>
  void measure(const std::string& name, const Work& work, const Run& run) const {
    std::vector<Sample> samples;
    Peaks before = peaks(work);
    for (int i = 0; i < options_.repeats; ++i) {
      const double start = now_s();
      run();
      const double seconds = now_s() - start;
      const Peaks after = peaks(work);
      samples.push_back(sample(work, seconds, before, after));
      before = after;
    }
    print(name, work, samples);
  }

 private:
  struct Peaks {
    double gflops = 0;
    double gbytes_per_s = 0;
    double integer_gops = 0;
  };
  struct Sample {
    double value = 0;
    double limit = 0;
    Peaks peaks;
  };

  Peaks peaks(const Work& work) const;
  static Sample sample(const Work& work, double seconds, const Peaks& before, const Peaks& after);
  void print(const std::string& name, const Work& work, const std::vector<Sample>& samples) const;

  const Options& options_;
  Limits& limits_;
};

// The cases, by subject.
void bench_attention(const Report& report, const Options& options, ThreadPool& pool);
void bench_products(const Report& report, const Options& options, ThreadPool& pool);
// Non-zero when the model cannot be loaded.
int bench_model(const Report& report, const Options& options, ThreadPool& pool);
bool is_latent(const std::string& model);
// The prompts of a model with latent attention: options.model if it has that, else a random one.
int bench_mla(const Report& report, const Options& options);

}  // namespace crossdock::bench
