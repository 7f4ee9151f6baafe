#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>

#include "crossdock/kernels/kernels.h"
#include "crossdock/model/executor.h"
#include "tiny_decoder.h"

namespace crossdock::testing {
namespace {

using Row = std::vector<float>;

// One sequence in a slab of its own choice of blocks.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<BlockId> blocks;
  uint32_t computed = 0;
  uint32_t first_generated = UINT32_MAX;
};

// An executor with its slab, which hands out blocks in a scrambled order.
class Runner {
 public:
  Runner(const std::string& directory, const ExecutorConfig& base, uint32_t num_blocks = 192) {
    ExecutorConfig config = base;
    config.model_directory = directory;
    auto loaded = load_cpu_executor(config);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    executor_ = std::move(loaded).value();
    slab_ = std::make_unique<Slab>(executor_->layout(), num_blocks);
    executor_->bind_slab(slab_->data(), num_blocks);
    for (uint32_t i = 0; i < num_blocks; ++i) free_.push_back((i * 37) % num_blocks);
  }

  Executor& executor() { return *executor_; }
  Slab& slab() { return *slab_; }

  Sequence make(std::vector<int32_t> tokens) {
    Sequence sequence{std::move(tokens), {}, 0, first_generated_};
    for (size_t covered = 0; covered < sequence.tokens.size(); covered += kBlockTokens) {
      sequence.blocks.push_back(free_.back());
      free_.pop_back();
    }
    return sequence;
  }

  static BatchItem item(const Sequence& sequence, uint32_t count, bool wants_logits) {
    return {std::span(sequence.tokens).subspan(sequence.computed, count), sequence.computed,
            sequence.blocks, wants_logits, sequence.first_generated};
  }

  // Of the sequences to come.
  void set_first_generated(uint32_t position) { first_generated_ = position; }

  // The rest of the sequence in chunks of `chunk`; logits after its last token.
  Row finish(Sequence& sequence, uint32_t chunk) {
    Row last;
    while (sequence.computed < sequence.tokens.size()) {
      const auto left = static_cast<uint32_t>(sequence.tokens.size()) - sequence.computed;
      const BatchItem one = item(sequence, std::min(chunk, left), left <= chunk);
      const auto logits = executor_->run({&one, 1}, {});
      sequence.computed += static_cast<uint32_t>(one.tokens.size());
      last.assign(logits.begin(), logits.end());
    }
    return last;
  }

  Row logits_of(const std::vector<int32_t>& tokens, uint32_t chunk) {
    Sequence sequence = make(tokens);
    Row row = finish(sequence, chunk);
    free_.insert(free_.end(), sequence.blocks.begin(), sequence.blocks.end());
    return row;
  }

 private:
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Slab> slab_;
  std::vector<BlockId> free_;
  uint32_t first_generated_ = UINT32_MAX;
};

bool same_bits(const Row& a, const Row& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr uint32_t kAll = 1u << 20;

ExecutorConfig executor_config(DType kv, uint32_t threads, const std::string& kernels) {
  return {.kv_dtype = kv, .num_threads = threads, .kernels = kernels};
}

void expect_close(const Row& row, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(row.size(), expected.size());
  for (size_t i = 0; i < row.size(); ++i) {
    ASSERT_NEAR(double{row[i]}, expected[i], tolerance) << "logit " << i;
  }
}

// The kinds of cache that take part in a comparison with the naive model.
constexpr DType kUnscaled[] = {DType::kF32, DType::kBf16};

class EveryArchitecture : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryArchitecture, AgreesWithTheNaiveModel) {
  for (const char* dtype : {"F32", "BF16"}) {
    for (const bool tied : {true, false}) {
      auto config = tiny_config(GetParam());
      config["tie_word_embeddings"] = tied;
      const auto model = TinyDecoder::random(config, dtype, 7);
      TemporaryDirectory directory;
      model.write(directory.path());
      const auto tokens = random_tokens(75, 101, 3);
      for (const DType kv : kUnscaled) {
        const auto expected = naive_logits(model, tokens, kv == DType::kBf16);
        for (const char* kernels : {"scalar", "auto"}) {
          auto config = executor_config(kv, 1, kernels);
          // The other form of latent attention, too.
          if (model.is_mla() && tied) config.mla_prefill = MlaPrefill::kExpanded;
          Runner runner(directory.path(), config);
          // A bf16 rounding may fall to the other side when the unrounded values differ by an ulp.
          const double tolerance = kv == DType::kF32 ? 5e-5 : 4e-2;
          for (const size_t length : {1, 2, 31, 32, 33, 75}) {
            const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + length);
            expect_close(runner.logits_of(prompt, kAll), expected[length - 1], tolerance);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, EveryArchitecture, ::testing::ValuesIn(kArchitectures));

TEST(CpuExecutor, AgreesWithTheNaiveModelBeyondOneRun) {
  for (const bool mla : {false, true}) {
    auto tiny = tiny_config(mla ? "DeepseekV2ForCausalLM" : "LlamaForCausalLM");
    tiny["num_hidden_layers"] = 1;
    const auto model = TinyDecoder::random(tiny, "F32", 8);
    TemporaryDirectory directory;
    model.write(directory.path());
    const auto tokens = random_tokens(1100, 101, 4);
    const auto expected = naive_logits(model, tokens, false);
    auto config = executor_config(DType::kF32, 2, "auto");
    if (mla) config.mla_prefill = MlaPrefill::kExpanded;
    Runner runner(directory.path(), config);
    for (const size_t length : {512, 513, 1024, 1025, 1100}) {
      const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + length);
      expect_close(runner.logits_of(prompt, kAll), expected[length - 1], 2e-5);
    }
  }
}

struct Case {
  const char* architecture;
  const char* checkpoint;
  WeightDtype weights;
  DType kv;
  MlaPrefill mla_prefill = MlaPrefill::kAbsorbed;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.architecture << " " << one.checkpoint << " weights " << static_cast<int>(one.weights)
       << " kv " << name(one.kv) << " " << name(one.mla_prefill);
}

// A prompt of `length` gives these bits alone, in one chunk, on one thread, by the reference.
class Invariance : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& one = GetParam();
    TinyDecoder::random(tiny_config(one.architecture), one.checkpoint, 11).write(directory_.path());
  }
  Runner make(uint32_t threads, const std::string& kernels) {
    auto config = executor_config(GetParam().kv, threads, kernels);
    config.weights.dtype = GetParam().weights;
    config.mla_prefill = GetParam().mla_prefill;
    Runner runner(directory_.path(), config);
    runner.set_first_generated(kFirstGenerated);
    return runner;
  }
  // So that chunks, runs and crowds hold positions of both sides.
  static constexpr uint32_t kFirstGenerated = 515;

  // The others take fewer of the cases, for time's sake.
  static bool is_llama() { return GetParam().architecture == std::string("LlamaForCausalLM"); }

  TemporaryDirectory directory_;
};

TEST_P(Invariance, ChunksThreadsAndKernelsGiveTheSameBits) {
  const auto tokens = random_tokens(700, 101, 5);
  auto reference = make(1, "scalar");
  for (const size_t length : {1, 33, 90, 520, 700}) {
    // Long prompts are slow in the reference and in small chunks: those go on two threads only,
    // where single rows are split over runs.
    const bool is_long = length > 100;
    if (length == 700 && !is_llama()) continue;
    const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + length);
    const Row expected = reference.logits_of(prompt, kAll);
    for (const uint32_t threads : {1, 2, 3}) {
      for (const char* kernels : {"scalar", "auto"}) {
        const bool scalar = kernels == std::string("scalar");
        if (is_long && (threads == 1 || (scalar && threads != 2))) continue;
        if (scalar && threads > 1 && !is_llama()) continue;
        auto runner = make(threads, kernels);
        for (const uint32_t chunk : {1u, 7u, 32u, 64u, kAll}) {
          if (is_long && scalar && chunk != 64) continue;
          if (is_long && chunk < 32 && (threads != 2 || length > 600 || !is_llama())) continue;
          EXPECT_TRUE(same_bits(runner.logits_of(prompt, chunk), expected))
              << length << " tokens, " << threads << " threads, " << kernels << ", chunk " << chunk;
        }
      }
    }
  }
}

TEST_P(Invariance, APrefixThatAnotherSequenceComputedServes) {
  auto tokens = random_tokens(150, 101, 6);
  auto runner = make(2, "auto");
  Sequence first = runner.make(tokens);
  runner.finish(first, 40);
  for (size_t i = 100; i < tokens.size(); ++i) tokens[i] = (tokens[i] + 1) % 101;
  Sequence second = runner.make(tokens);
  std::copy_n(first.blocks.begin(), 3, second.blocks.begin());
  second.computed = 3 * kBlockTokens;
  EXPECT_TRUE(same_bits(runner.finish(second, 13), make(1, "scalar").logits_of(tokens, kAll)));
}

TEST_P(Invariance, TheCrowdDoesNotMatter) {
  const std::vector<size_t> lengths = {1, 2, 5, 31, 32, 33, 64, 100, 513, 700, 3, 40, 17};
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    prompts.push_back(random_tokens(lengths[i], 101, 100 + i));
  }
  auto alone = make(1, "scalar");
  std::vector<Row> expected;
  for (const auto& prompt : prompts) expected.push_back(alone.logits_of(prompt, kAll));

  for (const uint32_t budget : {13u, 64u, 300u, 4096u}) {
    if (!is_llama() && budget != 64) continue;
    auto runner = make(2, "auto");
    std::vector<Sequence> sequences;
    for (const auto& prompt : prompts) sequences.push_back(runner.make(prompt));
    std::vector<Row> rows(prompts.size());
    for (uint32_t step = 0; std::ranges::any_of(rows, [](const Row& r) { return r.empty(); });
         ++step) {
      std::vector<BatchItem> batch;
      std::vector<size_t> who;
      uint32_t left = budget;
      // Starting elsewhere each step mixes chunks of every kind.
      for (size_t n = 0; n < sequences.size() && left > 0; ++n) {
        const size_t i = (n + step * 5) % sequences.size();
        const auto open = static_cast<uint32_t>(sequences[i].tokens.size()) - sequences[i].computed;
        const uint32_t count = std::min({open, left, 1 + (step * 7 + budget) % 61});
        if (count == 0) continue;
        left -= count;
        batch.push_back(Runner::item(sequences[i], count, count == open));
        who.push_back(i);
      }
      const auto logits = runner.executor().run(batch, {});
      size_t next = 0;
      for (size_t n = 0; n < batch.size(); ++n) {
        sequences[who[n]].computed += static_cast<uint32_t>(batch[n].tokens.size());
        if (!batch[n].wants_logits) continue;
        const auto row = logits.subspan(101 * next++, 101);
        rows[who[n]].assign(row.begin(), row.end());
      }
      ASSERT_EQ(logits.size(), 101 * next);
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_TRUE(same_bits(rows[i], expected[i])) << lengths[i] << " tokens, budget " << budget;
    }
  }
}

constexpr Case kCases[] = {
    {"LlamaForCausalLM", "F32", WeightDtype::kAuto, DType::kF32},
    {"LlamaForCausalLM", "F32", WeightDtype::kAuto, DType::kBf16},
    {"LlamaForCausalLM", "BF16", WeightDtype::kAuto, DType::kBf16},
    {"LlamaForCausalLM", "BF16", WeightDtype::kInt4, DType::kFp8E4m3},
    {"Qwen2ForCausalLM", "BF16", WeightDtype::kFp8, DType::kBf16},
    {"Qwen3MoeForCausalLM", "BF16", WeightDtype::kAuto, DType::kFp8E5m2},
    {"Qwen3MoeForCausalLM", "BF16", WeightDtype::kInt8, DType::kBf16},
    {"DeepseekV2ForCausalLM", "BF16", WeightDtype::kAuto, DType::kBf16},
    {"DeepseekV3ForCausalLM", "F32", WeightDtype::kAuto, DType::kF32},
    {"DeepseekV3ForCausalLM", "BF16", WeightDtype::kInt4, DType::kFp8DsMla},
    {"DeepseekV2ForCausalLM", "BF16", WeightDtype::kAuto, DType::kBf16, MlaPrefill::kExpanded},
    {"DeepseekV3ForCausalLM", "F32", WeightDtype::kAuto, DType::kFp8DsMla, MlaPrefill::kExpanded}};
INSTANTIATE_TEST_SUITE_P(Cases, Invariance, ::testing::ValuesIn(kCases));

// Fewer bits for weights or for K and V move the logits a little, and not at all where they are
// what is asked for twice.
TEST(CpuExecutor, FewerBitsStayClose) {
  for (const char* architecture :
       {"LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"}) {
    TemporaryDirectory directory;
    TinyDecoder::random(tiny_config(architecture), "F32", 21).write(directory.path());
    const auto tokens = random_tokens(70, 101, 9);
    const bool mla = architecture == std::string("DeepseekV3ForCausalLM");
    const auto logits_of = [&](WeightDtype weights, DType kv) {
      auto config = executor_config(kv, 2, "auto");
      config.weights.dtype = weights;
      return Runner(directory.path(), config).logits_of(tokens, 32);
    };
    const Row exact = logits_of(WeightDtype::kF32, DType::kF32);
    float largest = 0.0f;
    for (const float logit : exact) largest = std::max(largest, std::abs(logit));
    const std::pair<WeightDtype, DType> fewer[] = {
        {WeightDtype::kInt8, DType::kF32},
        {WeightDtype::kBf16, DType::kF32},
        {WeightDtype::kF32, mla ? DType::kFp8DsMla : DType::kFp8E4m3}};
    for (const auto& [weights, kv] : fewer) {
      const Row row = logits_of(weights, kv);
      float error = 0.0f;
      for (size_t i = 0; i < row.size(); ++i) error = std::max(error, std::abs(row[i] - exact[i]));
      EXPECT_LT(error, 0.12f * largest)
          << architecture << " " << static_cast<int>(weights) << " " << name(kv);
      EXPECT_GT(error, 0.0f);
    }
  }
}

TEST(CpuExecutor, RefusesACacheThatDoesNotSuitTheAttention) {
  for (const bool mla : {false, true}) {
    TemporaryDirectory directory;
    const char* architecture = mla ? "DeepseekV2ForCausalLM" : "LlamaForCausalLM";
    TinyDecoder::random(tiny_config(architecture), "F32", 1).write(directory.path());
    auto config = executor_config(mla ? DType::kFp8E4m3 : DType::kFp8DsMla, 1, "auto");
    config.model_directory = directory.path();
    const auto loaded = load_cpu_executor(config);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().message().find("kv_dtype"), std::string::npos);
  }
}

// The form of a position hangs on where it lies alone: what is generated has the absorbed bits, and
// a prompt has others, however the two meet.
TEST(CpuExecutor, ExpandsThePromptAndNothingElse) {
  TemporaryDirectory directory;
  TinyDecoder::random(tiny_config("DeepseekV3ForCausalLM"), "BF16", 5).write(directory.path());
  const auto tokens = random_tokens(90, 101, 2);
  const auto logits = [&](MlaPrefill form, uint32_t first_generated, uint32_t chunk,
                          const char* kernels = "auto") {
    auto config = executor_config(DType::kBf16, 2, kernels);
    config.mla_prefill = form;
    Runner runner(directory.path(), config);
    runner.set_first_generated(first_generated);
    return runner.logits_of(tokens, chunk);
  };
  const Row absorbed = logits(MlaPrefill::kAbsorbed, UINT32_MAX, kAll);
  EXPECT_TRUE(same_bits(logits(MlaPrefill::kAbsorbed, 50, kAll), absorbed));
  EXPECT_TRUE(same_bits(logits(MlaPrefill::kExpanded, 0, kAll), absorbed));
  const Row expanded = logits(MlaPrefill::kExpanded, UINT32_MAX, kAll);
  EXPECT_FALSE(same_bits(expanded, absorbed));
  EXPECT_TRUE(same_bits(logits(MlaPrefill::kExpanded, 90, 7), expanded));
  for (const uint32_t first_generated : {33u, 64u, 89u}) {
    const Row mixed = logits(MlaPrefill::kExpanded, first_generated, kAll);
    EXPECT_FALSE(same_bits(mixed, absorbed)) << first_generated;
    EXPECT_FALSE(same_bits(mixed, expanded)) << first_generated;
    EXPECT_TRUE(same_bits(logits(MlaPrefill::kExpanded, first_generated, 1), mixed));
    for (const char* kernels : {"scalar", "avx2", "avx512"}) {
      if (!kernels::select_kernels(kernels).ok()) continue;  // not on this machine
      EXPECT_TRUE(same_bits(logits(MlaPrefill::kExpanded, first_generated, 7, kernels), mixed));
    }
  }
}

TEST(CpuExecutor, RefusesToExpandWhatIsNotLatent) {
  TemporaryDirectory directory;
  TinyDecoder::random(tiny_config(), "F32", 1).write(directory.path());
  auto config = executor_config(DType::kF32, 1, "auto");
  config.model_directory = directory.path();
  config.mla_prefill = MlaPrefill::kExpanded;
  const auto loaded = load_cpu_executor(config);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find("mla_prefill: expanded needs"), std::string::npos);
  EXPECT_NE(loaded.status().message().find("grouped-query attention"), std::string::npos);
}

TEST(CpuExecutor, CallsBackOncePerLayerInOrder) {
  TemporaryDirectory directory;
  TinyDecoder::random(tiny_config(), "F32", 1).write(directory.path());
  Runner runner(directory.path(), executor_config(DType::kF32, 1, "auto"));
  const Sequence sequence = runner.make({1, 2, 3});
  const BatchItem item = Runner::item(sequence, 3, false);
  std::vector<uint32_t> layers;
  const auto logits =
      runner.executor().run({&item, 1}, [&](uint32_t layer) { layers.push_back(layer); });
  EXPECT_EQ(layers, (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(logits.empty());
}

TEST(CpuExecutor, ZeroesTheTailOfABlockAndNothingElse) {
  for (const DType kv : {DType::kF32, DType::kBf16}) {
    TemporaryDirectory directory;
    TinyDecoder::random(tiny_config(), "F32", 1).write(directory.path());
    Runner runner(directory.path(), executor_config(kv, 1, "auto"));
    const KvLayout& layout = runner.executor().layout();
    const size_t element = size_bytes(kv), stride = layout.stride_bytes();
    runner.executor().zero_tail(5, 30);
    std::vector<bool> zeroed(runner.slab().num_blocks() * stride, false);
    const auto mark = [&](size_t first) {
      for (size_t i = 0; i < element; ++i) zeroed[5 * stride + first + i] = true;
    };
    for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
        for (const size_t slot : {30, 31}) {
          for (size_t dim = 0; dim < layout.head_dim; ++dim) {
            mark(layout.k_offset(layer, head) + (dim * kBlockTokens + slot) * element);
            mark(layout.v_offset(layer, head) + (slot * layout.head_dim + dim) * element);
          }
        }
      }
    }
    for (size_t i = 0; i < zeroed.size(); ++i) {
      ASSERT_EQ(runner.slab().data()[i] == std::byte{0}, zeroed[i]) << "byte " << i;
    }
  }
}

TEST(CpuExecutor, NumericsIdNamesAllThatDecidesBitsAndNotTheKernels) {
  const auto id_of = [](const char* architecture, WeightDtype weights, DType kv,
                        const char* kernels, MlaPrefill form = MlaPrefill::kAbsorbed) {
    TemporaryDirectory directory;
    TinyDecoder::random(tiny_config(architecture), "BF16", 1).write(directory.path());
    auto config = executor_config(kv, 2, kernels);
    config.weights.dtype = weights;
    config.mla_prefill = form;
    return Runner(directory.path(), config).executor().numerics_id();
  };
  const char* llama = "LlamaForCausalLM";
  const std::string id = id_of(llama, WeightDtype::kAuto, DType::kBf16, "auto");
  EXPECT_EQ(id, "cpu-fma-v2;w=bf16;a=f32;kv=bf16;attn=gqa-run512-v1");
  EXPECT_EQ(id_of(llama, WeightDtype::kBf16, DType::kBf16, "scalar"), id);
  EXPECT_EQ(id_of(llama, WeightDtype::kInt4, DType::kFp8E4m3, "auto"),
            "cpu-fma-v2;w=int4;a=int16;kv=fp8_e4m3;attn=gqa-run512-v1");
  EXPECT_EQ(id_of("DeepseekV3ForCausalLM", WeightDtype::kFp8, DType::kFp8DsMla, "auto"),
            "cpu-fma-v2;w=fp8;a=f32;kv=fp8_ds_mla;attn=mla-absorbed-run512-v1;moe=by-id-v1");
  EXPECT_EQ(id_of("DeepseekV3ForCausalLM", WeightDtype::kFp8, DType::kFp8DsMla, "auto",
                  MlaPrefill::kExpanded),
            "cpu-fma-v2;w=fp8;a=f32;kv=fp8_ds_mla;attn=mla-expanded-run512-v1;moe=by-id-v1");
}

}  // namespace
}  // namespace crossdock::testing
