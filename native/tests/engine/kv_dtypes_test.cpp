// Handoffs between engines whose pools hold different KV dtypes: what decode then computes is what
// it computes over the converted blocks of the prompt, to the bit.
#include <algorithm>

#include "crossdock/model/kv_convert.h"
#include "engine_host.h"

namespace crossdock::testing {
namespace {

constexpr uint32_t kMaxTokens = 6;
// All at once, so that no sequence is preempted and recomputed in the receiver's own dtype.
constexpr uint32_t kNumBlocks = 160;

std::unique_ptr<Executor> load(const std::string& directory, DType kv_dtype) {
  auto executor = load_cpu_executor({.model_directory = directory, .kv_dtype = kv_dtype});
  EXPECT_TRUE(executor.ok()) << executor.status().to_string();
  return std::move(executor).value();
}

// Greedy tokens and digests as two executors give them with convert_block between.
Outcome converted_by_hand(const std::string& directory, DType from, DType to,
                          const std::vector<int32_t>& prompt) {
  const auto source = load(directory, from), target = load(directory, to);
  Slab source_slab(source->layout(), kNumBlocks), target_slab(target->layout(), kNumBlocks);
  source->bind_slab(source_slab.data(), kNumBlocks);
  target->bind_slab(target_slab.data(), kNumBlocks);
  std::vector<BlockId> table(kNumBlocks);
  for (uint32_t i = 0; i < kNumBlocks; ++i) table[i] = i;
  Outcome outcome;
  const auto take = [&](std::span<const float> row) {
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    const LogitDigest bits = digest(row);
    outcome.tokens.push_back(static_cast<int32_t>(best));
    outcome.digests.push_back(bits.low ^ bits.high);
  };
  const BatchItem whole{.tokens = prompt, .block_table = table, .wants_logits = true};
  take(source->run({&whole, 1}, nullptr));
  for (uint32_t block = 0; block * kBlockTokens < prompt.size(); ++block) {
    convert_block(source->layout(), target->layout(),
                  source_slab.data() + block * source->layout().stride_bytes(),
                  target_slab.data() + block * target->layout().stride_bytes());
  }
  for (uint32_t i = 0; i + 1 < kMaxTokens; ++i) {
    const int32_t token = outcome.tokens.back();
    const BatchItem next{.tokens = {&token, 1},
                         .first_position = static_cast<uint32_t>(prompt.size() + i),
                         .block_table = table,
                         .wants_logits = true};
    take(target->run({&next, 1}, nullptr));
  }
  return outcome;
}

struct Case {
  const char* architecture;
  DType from;
  DType to;
};

class KvDtypes : public ::testing::TestWithParam<Case> {};

TEST_P(KvDtypes, AHandoffGivesWhatConvertedBlocksGive) {
  const auto [architecture, from, to] = GetParam();
  TemporaryDirectory directory;
  TinyDecoder::random(tiny_config(architecture), "F32", 1).write(directory.path());
  LoopbackHub hub;
  EngineHost prefill(hub, directory.path(), 101, kNumBlocks, {.kv_dtype = from});
  EngineHost decode(hub, directory.path(), 202, kNumBlocks, {.kv_dtype = to});
  connect(prefill, decode, 1, 77);

  // Together they need more blocks than staging has; the second round meets a warm prefill.
  const size_t lengths[] = {1, 33, 700, 800};
  uint64_t id = 1;
  for (int round = 0; round < 2; ++round) {
    for (const size_t length : lengths) {
      const auto prompt = random_tokens(length, decode.ready().vocab_size, length);
      start_handoff(prefill, decode, id++, prompt, kMaxTokens);
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    const auto prompt = random_tokens(lengths[i], decode.ready().vocab_size, lengths[i]);
    const Outcome expected = converted_by_hand(directory.path(), from, to, prompt);
    for (id = i + 1; id <= i + 5; id += 4) {
      decode.wait([&] { return decode.outcome(id).over(); });
      EXPECT_EQ(decode.outcome(id).tokens, expected.tokens) << id;
      EXPECT_EQ(decode.outcome(id).digests, expected.digests) << id;
      // Converted blocks are found by nobody else.
      EXPECT_EQ(decode.outcome(id).num_cached_tokens, 0u);
    }
  }
  prefill.wait_until_clean();
  decode.wait_until_clean();
}

std::vector<Case> unequal_pairs() {
  const std::vector<DType> grouped = {DType::kF32, DType::kBf16, DType::kFp8E4m3, DType::kFp8E5m2};
  const std::vector<DType> latent = {DType::kF32, DType::kBf16, DType::kFp8DsMla};
  std::vector<Case> cases;
  const auto add = [&cases](const char* architecture, const std::vector<DType>& dtypes) {
    for (const DType from : dtypes) {
      for (const DType to : dtypes) {
        if (from != to) cases.push_back({architecture, from, to});
      }
    }
  };
  add("LlamaForCausalLM", grouped);
  add("DeepseekV3ForCausalLM", latent);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(EveryPair, KvDtypes, ::testing::ValuesIn(unequal_pairs()),
                         [](const auto& info) {
                           return std::string(info.param.architecture) + "_" +
                                  name(info.param.from) + "_to_" + name(info.param.to);
                         });

}  // namespace
}  // namespace crossdock::testing
