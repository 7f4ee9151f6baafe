// A step like one before it allocates nothing. This binary replaces the global allocator to count.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "crossdock/model/executor.h"
#include "crossdock/model/sampler.h"
#include "tiny_decoder.h"

namespace {
std::atomic<uint64_t> num_allocations{0};
}

// Not inlined, so that no compiler pairs the malloc in one with the delete of another.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace crossdock::testing {
namespace {

class Allocation : public ::testing::TestWithParam<const char*> {};

TEST_P(Allocation, AStepLikeOneBeforeItAllocatesNothing) {
  TemporaryDirectory directory;
  const auto model = TinyDecoder::random(tiny_config(GetParam()), "BF16", 1);
  model.write(directory.path());
  auto loaded = load_cpu_executor(
      {.model_directory = directory.path(),
       .weights = {WeightDtype::kInt4, ""},
       .kv_dtype = DType::kBf16,
       .mla_prefill = model.is_mla() ? MlaPrefill::kExpanded : MlaPrefill::kAbsorbed,
       .num_threads = 2});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  Executor& executor = *loaded.value();
  Slab slab(executor.layout(), 40);
  executor.bind_slab(slab.data(), slab.num_blocks());
  const auto tokens = random_tokens(640, 101, 2);
  std::vector<BlockId> blocks;
  for (BlockId block = 0; block < 40; ++block) blocks.push_back(block);
  // A chunk beside a decode that splits over runs.
  const BatchItem batch[] = {{std::span(tokens).first(50), 0, std::span(blocks).first(2), true},
                             {std::span(tokens).subspan(600, 1), 600, blocks, true, 600}};
  SamplingParams params;
  params.top_k = 20;
  params.top_p = 0.9f;
  const LayerCallback on_layer = [](uint32_t) {};
  const auto step = [&] {
    const auto logits = executor.run(batch, on_layer);
    return sample(logits.first(101), params, 5, {}) + sample(logits.subspan(101), params, 5, {});
  };
  const int32_t first = step();
  const uint64_t before = num_allocations;
  const int32_t second = step();
  EXPECT_EQ(num_allocations - before, 0u);
  EXPECT_EQ(first, second);
  EXPECT_GT(before, 0u);  // the counter is in place
}

INSTANTIATE_TEST_SUITE_P(Architectures, Allocation, ::testing::ValuesIn(kArchitectures));

}  // namespace
}  // namespace crossdock::testing
