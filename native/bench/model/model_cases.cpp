// Prefill and decode of a whole model through its executor.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <vector>

#include "crossdock/kernels/kernels.h"
#include "random_model.h"
#include "report.h"

namespace crossdock::bench {
namespace {

using kernels::WeightFormat;

// How many sequences go on for how many steps, and the length of the prompt of each.
struct Decode {
  const char* name;
  uint32_t num_streams;
  uint32_t prompt_tokens;
  uint32_t steps;
};
constexpr Decode kOne = {"decode_one_stream", 1, 128, 128};
constexpr Decode kSixteen = {"decode_16_streams", 16, 32, 32};
constexpr uint32_t kPrefillTokens[] = {512, 2048};
constexpr const char* kCases[] = {"prefill_512", "prefill_2048", kOne.name, kSixteen.name};

// A matrix of the model: `depth` inputs, `count` of them alike.
struct Matrix {
  uint32_t depth = 0;
  uint32_t num_outputs = 0;
  uint32_t count = 1;
  bool is_head = false;
};

std::vector<Matrix> matrices(const ModelConfig& model) {
  const uint32_t q = model.num_heads * model.head_dim, kv = model.num_kv_heads * model.head_dim;
  return {{model.hidden_size, q + 2 * kv, model.num_layers},
          {q, model.hidden_size, model.num_layers},
          {model.hidden_size, 2 * model.intermediate_size, model.num_layers},
          {model.intermediate_size, model.hidden_size, model.num_layers},
          {model.hidden_size, model.vocab_size, 1, true}};
}

// Multiplications and additions of `tokens` tokens after `past` others: every matrix for each, the
// head for `num_logits` of them, attention over each token's own past.
double gflop(const ModelConfig& model, double past, double tokens, double num_logits) {
  double sum = 0;
  for (const Matrix& m : matrices(model)) {
    sum += double{1} * m.depth * m.num_outputs * m.count * (m.is_head ? num_logits : tokens);
  }
  const double q = double{1} * model.num_heads * model.head_dim;
  sum += model.num_layers * 2 * q * (tokens * past + tokens * (tokens + 1) / 2);
  return 2 * sum / 1e9;
}

// An int4 model has an int8 head.
WeightFormat head_format(WeightFormat format) {
  return format == WeightFormat::kInt4 ? WeightFormat::kInt8 : format;
}

// What one step reads of the weights.
double weight_gbytes(const ModelConfig& model, WeightFormat format) {
  double bytes = 0;
  for (const Matrix& m : matrices(model)) {
    const double panels = std::ceil(double{1} * m.num_outputs / kernels::kPanelOutputs);
    bytes += m.count * panels *
             static_cast<double>(
                 kernels::panel_bytes(m.is_head ? head_format(format) : format, m.depth));
  }
  return bytes / 1e9;
}

WeightFormat format_of(const std::string& numerics_id) {
  const std::pair<const char*, WeightFormat> formats[] = {{"w=f32", WeightFormat::kF32},
                                                          {"w=bf16", WeightFormat::kBf16},
                                                          {"w=fp8", WeightFormat::kFp8},
                                                          {"w=int8", WeightFormat::kInt8},
                                                          {"w=int4", WeightFormat::kInt4}};
  for (const auto& [text, format] : formats) {
    if (numerics_id.find(text) != std::string::npos) return format;
  }
  assert(!"an executor with another weight format");
  return WeightFormat::kF32;
}

// How fast the product of one row takes weights that lie in the second-level cache, on all threads
// at once: what its instructions allow, in GB/s of weights.
double cached_gbytes_per_s(ThreadPool& pool, const kernels::Kernels& kernels, WeightFormat format) {
  constexpr uint32_t kDepth = 576, kPasses = 200;
  constexpr size_t kBytes = 192 << 10;
  const size_t panel = kernels::panel_bytes(format, kDepth);
  const auto units = static_cast<uint32_t>(kBytes / panel);
  const std::vector<float> weights(kDepth, 0.01f), x(kDepth, 0.5f);
  const std::vector<const float*> rows(kernels::kPanelOutputs, weights.data());
  std::vector<int16_t> values(size_t{kernels::num_groups(kDepth)} * kernels::kGroup);
  std::vector<float> scales(1), sums(kernels::num_groups(kDepth));
  const kernels::QuantisedRows quantised{values.data(), scales.data(), sums.data(),
                                         kernels::num_groups(kDepth)};
  kernels::quantise_row(x.data(), kDepth, 0, quantised);
  std::vector<PageBuffer> panels;
  for (uint32_t t = 0; t < pool.num_threads(); ++t) {
    panels.push_back(PageBuffer::allocate(units * panel).value());
    for (uint32_t u = 0; u < units; ++u) {
      kernels::pack_panel(format, rows.data(), kDepth, panels[t].data() + u * panel);
    }
  }
  const double start = now_s();
  pool.parallel_for(pool.num_threads(), 1, [&](size_t begin, size_t end, uint32_t) {
    std::vector<float> y(size_t{units} * kernels::kPanelOutputs);
    std::vector<float> scratch(kernels::product_scratch_floats(kDepth));
    for (size_t i = begin; i < end; ++i) {
      const kernels::Product job{.x = x.data(),
                                 .x_stride = kDepth,
                                 .quantised = quantised,
                                 .num_rows = 1,
                                 .tile_rows = kernels::product_tile_rows(kDepth),
                                 .depth = kDepth,
                                 .panels = panels[i].data(),
                                 .format = format,
                                 .num_outputs = units * kernels::kPanelOutputs,
                                 .y = y.data(),
                                 .y_stride = y.size()};
      for (uint32_t n = 0; n < kPasses; ++n) kernels.product(job, 0, units, scratch.data());
    }
  });
  return static_cast<double>(pool.num_threads() * kPasses * units * panel) / (now_s() - start) /
         1e9;
}

// An executor with a slab for sixteen sequences, or one of the longest prompt.
struct Engine {
  std::unique_ptr<Executor> executor;
  PageBuffer slab;
  std::vector<std::vector<BlockId>> tables;  // a sequence
  std::vector<int32_t> tokens;

  BatchItem item(uint32_t sequence, uint32_t first_position, uint32_t count) const {
    return {std::span(tokens).subspan(first_position, count), first_position, tables[sequence],
            true};
  }
  void run(uint32_t first_position, uint32_t count) {
    const BatchItem one = item(0, first_position, count);
    executor->run({&one, 1}, {});
  }
  // One token of each of the first `num_streams` sequences.
  void step(uint32_t position, uint32_t num_streams) {
    std::vector<BatchItem> batch;
    for (uint32_t i = 0; i < num_streams; ++i) batch.push_back(item(i, position, 1));
    executor->run(batch, {});
  }
};

constexpr uint32_t kSequenceTokensMax = 2048;

Result<Engine> load_engine(const Options& options) {
  std::string directory = options.model;
  if (directory.empty()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "crossdock-XXXXXX").string();
    directory = mkdtemp(pattern.data());
    write_random_model(directory);
  }
  auto loaded = load_cpu_executor({.model_directory = directory,
                                   .weights = {options.weight_dtype, options.weight_cache, {}},
                                   .kv_dtype = options.kv_dtype,
                                   .num_threads = options.threads,
                                   .kernels = options.kernels});
  if (options.model.empty()) std::filesystem::remove_all(directory);
  if (!loaded.ok()) return loaded.status();
  Engine engine{.executor = std::move(loaded).value()};
  // The first sequence may hold the longest prompt; the others share its blocks' far end.
  constexpr uint32_t kStreams = kSixteen.num_streams;
  constexpr uint32_t kStreamBlocks = (kSixteen.prompt_tokens + kSixteen.steps) / kBlockTokens;
  const uint32_t num_blocks = std::max(kSequenceTokensMax / kBlockTokens, kStreams * kStreamBlocks);
  auto slab = PageBuffer::allocate(num_blocks * engine.executor->layout().stride_bytes());
  if (!slab.ok()) return slab.status();
  engine.slab = std::move(slab).value();
  engine.executor->bind_slab(engine.slab.data(), num_blocks);
  engine.tables.resize(kStreams);
  for (uint32_t i = 0; i < num_blocks; ++i) {
    engine.tables[0].push_back(i);
    if (i >= kStreamBlocks && i < kStreams * kStreamBlocks) {
      engine.tables[i / kStreamBlocks].push_back(i);
    }
  }
  std::mt19937 random(1);
  for (uint32_t i = 0; i < kSequenceTokensMax; ++i) {
    engine.tokens.push_back(static_cast<int32_t>(random() % engine.executor->model().vocab_size));
  }
  return engine;
}

void bench_prefill(const Report& report, Engine& engine, bool integer) {
  const ModelConfig& model = engine.executor->model();
  for (const uint32_t tokens : kPrefillTokens) {
    const std::string name = "prefill_" + std::to_string(tokens);
    if (!report.wants(name)) continue;
    Work work{.amount = double{1} * tokens, .gflop = gflop(model, 0, tokens, 1)};
    work.integer = integer;
    report.measure(name, work, [&] { engine.run(0, tokens); });
  }
}

// `work` says what a step reads of the weights, and how fast.
void bench_decode(const Report& report, Engine& engine, Work work, const Decode& decode) {
  if (!report.wants(decode.name)) return;
  for (uint32_t i = 0; i < decode.num_streams; ++i) {
    const BatchItem prompt = engine.item(i, 0, decode.prompt_tokens);
    engine.executor->run({&prompt, 1}, {});
  }
  const ModelConfig& model = engine.executor->model();
  const double steps = decode.steps, streams = decode.num_streams;
  work.amount = steps * streams;
  work.gflop = streams * gflop(model, decode.prompt_tokens, steps, steps);
  const double kv = streams * (decode.prompt_tokens + steps / 2) / kBlockTokens *
                    static_cast<double>(engine.executor->layout().block_bytes());
  work.gbytes = steps * (work.gbytes + kv / 1e9);
  report.measure(decode.name, work, [&] {
    for (uint32_t i = 0; i < decode.steps; ++i) {
      engine.step(decode.prompt_tokens + i, decode.num_streams);
    }
  });
}

}  // namespace

int bench_model(const Report& report, const Options& options, ThreadPool& pool) {
  if (std::none_of(std::begin(kCases), std::end(kCases),
                   [&](const char* name) { return report.wants(name); })) {
    return 0;
  }
  if (is_latent(options.model)) {
    std::fputs("bench_engine: a model with latent attention has cases of its own\n", stderr);
    return 0;
  }
  auto loaded = load_engine(options);
  if (!loaded.ok()) {
    std::fprintf(stderr, "bench_engine: %s\n", loaded.status().to_string().c_str());
    return 1;
  }
  Engine& engine = loaded.value();
  const WeightFormat format = format_of(engine.executor->numerics_id());
  const bool integer = kernels::is_integer(format);
  engine.run(0, kOne.prompt_tokens);  // every weight has been touched
  bench_prefill(report, engine, integer);
  Work work{.gbytes = weight_gbytes(engine.executor->model(), format), .integer = integer};
  const kernels::Kernels& kernels = *kernels::select_kernels(options.kernels).value();
  work.gbytes_per_s_max = cached_gbytes_per_s(pool, kernels, format);
  bench_decode(report, engine, work, kOne);
  work.gbytes_per_s_max = 0;
  bench_decode(report, engine, work, kSixteen);
  return 0;
}

}  // namespace crossdock::bench
