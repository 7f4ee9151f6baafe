#include "report.h"

#include <algorithm>
#include <cstdio>

namespace crossdock::bench {
namespace {

template <typename Sample, typename Field>
double median_of(const std::vector<Sample>& samples, const Field& field) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(field(sample));
  return median(std::move(values));
}

}  // namespace

bool Report::wants(const std::string& name) const {
  return options_.cases.empty() ||
         std::any_of(options_.cases.begin(), options_.cases.end(),
                     [&](const std::string& start) { return name.rfind(start, 0) == 0; });
}

Report::Peaks Report::peaks(const Work& work) const {
  return {limits_.fma_gflops(), limits_.read_gbytes_per_s(),
          work.integer ? limits_.integer_gops() : 0.0};
}

Report::Sample Report::sample(const Work& work, double seconds, const Peaks& before,
                              const Peaks& after) {
  const Peaks mean{(before.gflops + after.gflops) / 2,
                   (before.gbytes_per_s + after.gbytes_per_s) / 2,
                   (before.integer_gops + after.integer_gops) / 2};
  const double gbytes_per_s = work.gbytes_per_s_max > 0
                                  ? std::min(mean.gbytes_per_s, work.gbytes_per_s_max)
                                  : mean.gbytes_per_s;
  const double limit_s = std::max(work.gflop / mean.gflops, work.gbytes / gbytes_per_s);
  return {work.amount / seconds, work.amount / limit_s, mean};
}

void Report::print(const std::string& name, const Work& work,
                   const std::vector<Sample>& samples) const {
  const auto value = [](const Sample& s) { return s.value; };
  const auto limit = [](const Sample& s) { return s.limit; };
  std::printf(
      "{\"bench\": \"engine\", \"case\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", "
      "\"limit\": %.4g, \"ratio\": %.3f, \"threads\": %u, \"gflop\": %.4g, \"gbytes\": %.4g, "
      "\"fma_gflops\": %.1f, \"read_gbytes_per_s\": %.2f",
      name.c_str(), median_of(samples, value), work.unit, median_of(samples, limit),
      median_of(samples, [](const Sample& s) { return s.value / s.limit; }), options_.threads,
      work.gflop, work.gbytes, median_of(samples, [](const Sample& s) { return s.peaks.gflops; }),
      median_of(samples, [](const Sample& s) { return s.peaks.gbytes_per_s; }));
  if (work.gbytes_per_s_max > 0) {
    std::printf(", \"cached_gbytes_per_s\": %.2f", work.gbytes_per_s_max);
  }
  if (work.integer) {
    std::printf(", \"integer_gops\": %.1f",
                median_of(samples, [](const Sample& s) { return s.peaks.integer_gops; }));
  }
  std::printf(", \"values\": [");
  for (size_t i = 0; i < samples.size(); ++i) {
    std::printf("%s%.4g", i == 0 ? "" : ", ", samples[i].value);
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

}  // namespace crossdock::bench
