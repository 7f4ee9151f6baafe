#include "crossdock/model/weight_report.h"

#include <atomic>
#include <filesystem>
#include <vector>

#include "packed_cache.h"
#include "weight_planner.h"

namespace crossdock {
namespace {

// Weights of one packed matrix that are the checkpoint's.
uint64_t count_exact(const MatrixPlan& plan, ThreadPool& pool) {
  const uint32_t depth = plan.to->depth;
  std::atomic<uint64_t> total{0};
  for (size_t part = 0; part < plan.parts.size(); ++part) {
    pool.parallel_for(plan.parts[part].num_outputs, 64, [&](size_t begin, size_t end, uint32_t) {
      std::vector<float> expected(depth), packed(depth);
      uint64_t num_exact = 0;
      for (auto output = static_cast<uint32_t>(begin); output < end; ++output) {
        widen_output(plan.parts[part], output, depth, expected.data());
        kernels::unpack_output(plan.to->panels, plan.to->format, depth,
                               plan.packed_output(part, output), packed.data());
        for (uint32_t k = 0; k < depth; ++k) num_exact += expected[k] == packed[k];
      }
      total.fetch_add(num_exact, std::memory_order_relaxed);
    });
  }
  return total.load(std::memory_order_relaxed);
}

uint64_t num_weights(const MatrixPlan& plan) {
  uint64_t num_outputs = 0;
  for (const auto& part : plan.parts) num_outputs += part.num_outputs;
  return num_outputs * plan.to->depth;
}

}  // namespace

Result<WeightReport> report_weights(const std::string& model_directory,
                                    const WeightOptions& options, uint32_t num_threads) {
  auto config = load_model_config(model_directory);
  if (!config.ok()) return config.status();
  auto checkpoint = Checkpoint::open(model_directory);
  if (!checkpoint.ok()) return checkpoint.status();
  ThreadPool pool(num_threads);
  auto weights = DecoderWeights::load(checkpoint.value(), config.value(), options, pool);
  if (!weights.ok()) return weights.status();
  // The same plan once more, over what was loaded.
  DecoderWeights again;
  TensorReader reader(checkpoint.value(), config.value().fp8_block_scaled);
  WeightPlanner planner(config.value(), reader, again);
  if (Status status = planner.plan(options); !status.ok()) return status;
  planner.bind(weights.value().arena.data());
  WeightReport report{.dtype = again.dtype, .memory_bytes = planner.arena_bytes()};
  for (const auto& plan : planner.plans()) {
    report.num_weights += num_weights(plan);
    report.num_exact += count_exact(plan, pool);
  }
  const std::string file = PackedCache(options.cache_directory, weights.value().fingerprint,
                                       planner.plans(), planner.arena_bytes())
                               .path();
  std::error_code absent;
  if (std::filesystem::is_regular_file(file, absent)) report.file = file;
  return report;
}

}  // namespace crossdock
