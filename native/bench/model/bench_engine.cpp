// How near the executor comes to what the machine can do.
//
//   bench_engine [--model DIR] [--threads N] [--kv-dtype f32|bf16] [--repeats N] [--case PREFIX]
//
// Prints one JSON line a case: value, the limit measured in the same seconds on the same threads,
// and the median ratio over the repeats.
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "crossdock/kernels/attention.h"
#include "crossdock/model/executor.h"
#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/thread_pool.h"
#include "machine_limits.h"
#include "random_model.h"

namespace crossdock::bench {
namespace {

struct Options {
  std::string model;
  uint32_t threads = 0;
  DType kv_dtype = DType::kBf16;
  int repeats = 7;
  std::string only;
};

bool parse(int argc, char** argv, Options& options) {
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") {
      options.model = value;
    } else if (name == "--threads") {
      options.threads = static_cast<uint32_t>(std::atoi(value.c_str()));
    } else if (name == "--kv-dtype" && (value == "f32" || value == "bf16")) {
      options.kv_dtype = value == "f32" ? DType::kF32 : DType::kBf16;
    } else if (name == "--repeats") {
      options.repeats = std::atoi(value.c_str());
    } else if (name == "--case") {
      options.only = value;
    } else {
      return false;
    }
  }
  return options.threads >= 1 && options.repeats >= 1;
}

class Report {
 public:
  Report(const Options& options, Limits& limits) : options_(options), limits_(limits) {}

  bool wants(const std::string& name) const { return name.rfind(options_.only, 0) == 0; }

  // `work` does `amount` (GFLOP or GB) and is timed beside `limit`, in amount per second.
  template <typename Work>
  void measure(const std::string& name, double amount, bool flops, const Work& work) const {
    if (!wants(name)) return;
    work();
    std::vector<double> values, limits, ratios;
    for (int i = 0; i < options_.repeats; ++i) {
      const double before = limit(flops);
      const double start = now_s();
      work();
      values.push_back(amount / (now_s() - start));
      limits.push_back((before + limit(flops)) / 2);
      ratios.push_back(values.back() / limits.back());
    }
    std::printf(
        "{\"bench\": \"engine\", \"case\": \"%s\", \"value\": %.2f, \"unit\": \"%s\", "
        "\"limit\": %.2f, \"ratio\": %.3f}\n",
        name.c_str(), median(values), flops ? "GFLOP/s" : "GB/s", median(limits), median(ratios));
    std::fflush(stdout);
  }

 private:
  double limit(bool flops) const {
    return flops ? limits_.fma_gflops() : limits_.read_gbytes_per_s();
  }

  const Options& options_;
  Limits& limits_;
};

// The shape of SmolLM2-135M's attention at its full context: per layer of one block 48 KiB in f32.
KvLayout attention_layout(DType dtype) {
  KvLayout layout;
  layout.num_layers = 30;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  layout.dtype = dtype;
  return layout;
}

// One decode row over 8,192 tokens of all layers: 377 MB of KV in f32, 189 MB in bf16.
void bench_decode_attention(const Report& report, ThreadPool& pool, DType dtype) {
  const std::string name =
      std::string("decode_attention_") + (dtype == DType::kF32 ? "f32" : "bf16");
  if (!report.wants(name)) return;
  constexpr uint32_t kTokens = 8192, kBlocks = kTokens / kBlockTokens, kGroup = 3;
  const KvLayout layout = attention_layout(dtype);
  auto slab = PageBuffer::allocate(kBlocks * layout.stride_bytes());
  assert(slab.ok());
  std::memset(slab.value().data(), 0x3c, slab.value().size());  // small, finite, and resident
  std::vector<uint32_t> table(kBlocks);
  for (uint32_t i = 0; i < kBlocks; ++i) table[i] = i * 37 % kBlocks;  // scattered, all different
  const std::vector<float> q(kGroup * layout.num_kv_heads * layout.head_dim, 0.5f);
  const auto& kernels = *kernels::select_kernels("auto").value();
  const size_t state_floats = kernels::attention_state_floats(kGroup, layout.head_dim);
  const size_t scratch_floats = kernels::attention_scratch_floats(kGroup, layout.head_dim);
  const uint32_t runs = kTokens / kernels::kRunSlots;
  std::vector<float> states(runs * layout.num_kv_heads * state_floats);
  std::vector<std::vector<float>> scratch(pool.num_threads(), std::vector<float>(scratch_floats));
  const auto step = [&] {
    for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      pool.parallel_for(
          runs * layout.num_kv_heads, 1, [&](size_t begin, size_t end, uint32_t thread) {
            for (size_t i = begin; i < end; ++i) {
              const auto head = static_cast<uint32_t>(i % layout.num_kv_heads);
              const auto run = static_cast<uint32_t>(i / layout.num_kv_heads);
              const kernels::KvHead kv{slab.value().data(),
                                       layout.stride_bytes(),
                                       layout.k_offset(layer, head),
                                       layout.v_offset(layer, head),
                                       static_cast<kernels::ElementType>(dtype),
                                       layout.head_dim};
              const kernels::QueryTile tile{q.data() + head * kGroup * layout.head_dim,
                                            q.size(),
                                            1,
                                            kGroup,
                                            kTokens - 1,
                                            table.data()};
              kernels::attend(kernels, tile, kv, {run, run + 1},
                              kernels::attention_state(states.data() + i * state_floats, kGroup,
                                                       layout.head_dim),
                              scratch[thread].data());
            }
          });
    }
  };
  report.measure(name, kBlocks * static_cast<double>(layout.block_bytes()) / 1e9, false, step);
}

// Multiplications and additions of a prompt: every matrix of every layer for every token, attention
// over each token's own past, and one row of logits.
double prefill_gflop(const ModelConfig& model, double tokens) {
  const double q = double{1} * model.num_heads * model.head_dim;
  const double kv = double{1} * model.num_kv_heads * model.head_dim;
  const double matrices = model.hidden_size * (2 * q + 2 * kv + 3.0 * model.intermediate_size);
  const double attention = 2 * q * tokens * (tokens + 1) / 2;
  const double head = double{1} * model.hidden_size * model.vocab_size;
  return 2 * (model.num_layers * (tokens * matrices + attention) + head) / 1e9;
}

// An executor with a slab for one sequence of the longest case.
struct Engine {
  std::unique_ptr<Executor> executor;
  PageBuffer slab;
  std::vector<BlockId> table;
  std::vector<int32_t> tokens;

  void run(uint32_t first_position, uint32_t count) {
    const BatchItem item{std::span(tokens).subspan(first_position, count), first_position, table,
                         true};
    executor->run({&item, 1}, {});
  }
};

constexpr uint32_t kTokensMax = 2048 + kBlockTokens;

Result<Engine> load_engine(const std::string& directory, const Options& options) {
  auto loaded = load_cpu_executor({directory, options.kv_dtype, options.threads, "auto"});
  if (!loaded.ok()) return loaded.status();
  Engine engine{std::move(loaded).value(), {}, {}, {}};
  const uint32_t num_blocks = kTokensMax / kBlockTokens;
  auto slab = PageBuffer::allocate(num_blocks * engine.executor->layout().stride_bytes());
  if (!slab.ok()) return slab.status();
  engine.slab = std::move(slab).value();
  engine.executor->bind_slab(engine.slab.data(), num_blocks);
  for (uint32_t i = 0; i < num_blocks; ++i) engine.table.push_back(i);
  std::mt19937 random(1);
  for (uint32_t i = 0; i < kTokensMax; ++i) {
    engine.tokens.push_back(static_cast<int32_t>(random() % engine.executor->model().vocab_size));
  }
  return engine;
}

void bench_model(const Report& report, Engine& engine) {
  const ModelConfig& model = engine.executor->model();
  for (const uint32_t tokens : {512u, 2048u}) {
    report.measure("prefill_" + std::to_string(tokens), prefill_gflop(model, tokens), true,
                   [&] { engine.run(0, tokens); });
  }
  // One token after 128: every weight is read once, and the KV of the past.
  constexpr uint32_t kPast = 128, kSteps = 8;
  const bool f32 = engine.executor->numerics_id().find("w=f32") != std::string::npos;
  const double weights = (prefill_gflop(model, 1) / 2 * 1e9) * (f32 ? 4 : 2);
  const double kv = static_cast<double>(kPast) / kBlockTokens *
                    static_cast<double>(engine.executor->layout().block_bytes());
  engine.run(0, kPast);
  report.measure("decode_one_stream", kSteps * (weights + kv) / 1e9, false, [&] {
    for (uint32_t i = 0; i < kSteps; ++i) engine.run(kPast, 1);
  });
}

int main_with(const Options& options) {
  ThreadPool pool(options.threads);
  Limits limits(pool);
  const Report report(options, limits);
  bench_decode_attention(report, pool, DType::kF32);
  bench_decode_attention(report, pool, DType::kBf16);
  std::string directory = options.model;
  if (directory.empty()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "crossdock-XXXXXX").string();
    directory = mkdtemp(pattern.data());
    write_random_model(directory);
  }
  auto engine = load_engine(directory, options);
  if (options.model.empty()) std::filesystem::remove_all(directory);
  if (!engine.ok()) {
    std::fprintf(stderr, "bench_engine: %s\n", engine.status().to_string().c_str());
    return 1;
  }
  bench_model(report, engine.value());
  return 0;
}

}  // namespace
}  // namespace crossdock::bench

int main(int argc, char** argv) {
  crossdock::bench::Options options;
  if (!crossdock::bench::parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: bench_engine [--model DIR] [--threads N] [--kv-dtype f32|bf16] "
                 "[--repeats N] [--case PREFIX]\n");
    return 2;
  }
  return crossdock::bench::main_with(options);
}
