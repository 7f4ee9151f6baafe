// The fit beside a simulated machine, which says what each step takes: no clock.
#include "crossdock/sched/step_time_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace crossdock {
namespace {

constexpr uint64_t kBound = 250'000;
constexpr uint32_t kBlock = 32;

// In ticks; about a model of 135 M parameters on two cores.
struct Machine {
  double base = 8'000;
  double decode = 900;
  double token = 1'500;
  double attended = 0.4;
  // How much dearer a token of a small chunk is: by this share where the chunk is one block.
  double small_chunks = 0;
  double slowness = 1;
  double noise = 0;
  std::mt19937_64 random{1};

  double exact(const StepLoad& load) const {
    const double n = load.num_chunk_tokens;
    return slowness * (base + decode * load.num_decodes + token * n +
                       small_chunks * token * n * kBlock / (n + kBlock) +
                       attended * static_cast<double>(load.num_attended));
  }
  uint64_t operator()(const StepLoad& load) {
    std::normal_distribution<double> normal;
    return static_cast<uint64_t>(exact(load) * std::exp(noise * normal(random)));
  }
};

struct Step {
  uint32_t num_tokens = 0;
  double share = 0;  // of the bound that it took
};

class StepTimeFitTest : public testing::Test {
 protected:
  // Computes positions [begin, end) of a prompt beside so many decodes, as the scheduler would.
  std::vector<Step> prompt(uint32_t num_decodes, uint32_t begin, uint32_t end) {
    std::vector<Step> steps;
    while (begin < end) {
      const StepLoad decodes{.num_decodes = num_decodes};
      const uint32_t most = std::min(2048u, end - begin);
      uint32_t count = std::max(fit_.largest_chunk(decodes, begin, most, kBound), kBlock);
      count = std::min(count, most);
      if (count < most) count = count / kBlock * kBlock;
      steps.push_back({count, observe(decodes.with_chunk(begin, count))});
      begin += count;
    }
    return steps;
  }
  void decode(uint32_t num_decodes, uint32_t num_steps) {
    for (uint32_t i = 0; i < num_steps; ++i) observe({.num_decodes = num_decodes});
  }
  double observe(const StepLoad& load) {
    const uint64_t duration = machine_(load);
    fit_.observe(load, duration);
    return static_cast<double>(duration) / kBound;
  }
  // Whole blocks that keep the bound on this machine, for one who knows it.
  uint32_t ideal_chunk(uint32_t num_decodes, uint32_t position) const {
    uint32_t count = kBlock;
    const StepLoad decodes{.num_decodes = num_decodes};
    while (machine_.exact(decodes.with_chunk(position, count + kBlock)) <= kBound) count += kBlock;
    return count;
  }

  StepTimeFit fit_;
  Machine machine_;
};

double worst(const std::vector<Step>& steps, size_t from = 0) {
  double share = 0;
  for (size_t i = from; i < steps.size(); ++i) share = std::max(share, steps[i].share);
  return share;
}

TEST_F(StepTimeFitTest, NothingIsSafeBeforeTheFirstObservation) {
  EXPECT_FALSE(fit_.has_observed());
  EXPECT_EQ(fit_.predict({.num_decodes = 1}), 0.0);
  EXPECT_FALSE(fit_.keeps({}, UINT64_MAX));
  EXPECT_EQ(fit_.largest_chunk({}, 0, 2048, UINT64_MAX), 0u);
}

TEST_F(StepTimeFitTest, TheFirstChunksGrowToTheBoundFromBelow) {
  for (const double slowness : {0.001, 0.1, 1.0, 2.0}) {
    fit_ = {};
    machine_.slowness = slowness;
    const auto steps = prompt(0, 0, 3000);
    EXPECT_EQ(steps[0].num_tokens, kBlock);
    EXPECT_LE(worst(steps), 1.02) << slowness;
    EXPECT_GE(steps[2].num_tokens, std::min(900.0, 0.6 * ideal_chunk(0, 1024))) << slowness;
  }
}

TEST_F(StepTimeFitTest, LearnsEachCostFromMixedSteps) {
  machine_.noise = 0.05;
  std::mt19937_64 random(2);
  for (int i = 0; i < 400; ++i) {
    const StepLoad decodes{.num_decodes = static_cast<uint32_t>(random() % 64)};
    const auto num_tokens = static_cast<uint32_t>(random() % 128);
    observe(decodes.with_chunk(static_cast<uint32_t>(random() % 2000), num_tokens));
  }
  for (const StepLoad& load :
       {StepLoad{.num_decodes = 1}, StepLoad{.num_decodes = 64}, StepLoad{}.with_chunk(0, 256),
        StepLoad{}.with_chunk(2000, 64), StepLoad{.num_decodes = 16}.with_chunk(1000, 128)}) {
    EXPECT_NEAR(fit_.predict(load) / machine_.exact(load), 1.0, 0.2)
        << load.num_decodes << " decodes, " << load.num_chunk_tokens << " tokens";
  }
}

TEST_F(StepTimeFitTest, NoiseCostsAFewStepsOverTheBound) {
  machine_.noise = 0.15;
  prompt(16, 0, 4096);
  std::vector<Step> steps;
  for (int i = 0; i < 40; ++i) {
    const auto more = prompt(16, 0, 2048);
    steps.insert(steps.end(), more.begin(), more.end());
  }
  double sum = 0;
  for (const Step& step : steps) sum += step.share;
  const auto num_over =
      std::count_if(steps.begin(), steps.end(), [](const Step& step) { return step.share > 1.4; });
  EXPECT_GT(sum / static_cast<double>(steps.size()), 0.65) << "it gives away too much";
  EXPECT_LE(num_over, static_cast<int64_t>(steps.size() / 100)) << "of " << steps.size();
}

TEST_F(StepTimeFitTest, AHiccupHardlyCounts) {
  machine_.noise = 0.03;
  prompt(16, 0, 4096);
  const uint32_t before = fit_.largest_chunk({.num_decodes = 16}, 1024, 2048, kBound);
  const StepLoad load = StepLoad{.num_decodes = 16}.with_chunk(1024, 64);
  for (const double factor : {10.0, 1000.0}) {
    fit_.observe(load, static_cast<uint64_t>(factor * machine_.exact(load)));
    EXPECT_GE(fit_.largest_chunk({.num_decodes = 16}, 1024, 2048, kBound), 0.8 * before);
    prompt(16, 0, 2048);
  }
}

// After a change of speed, `kSurprisesMax` steps may miss the bound; from then on it is kept, and
// what it allows is used.
TEST_F(StepTimeFitTest, FollowsASuddenChangeOfSpeed) {
  for (const double noise : {0.0, 0.05}) {
    for (const double factor : {3.0, 1 / 3.0, 1.7, 1 / 1.7, 6.0}) {
      SCOPED_TRACE(testing::Message() << "slower by " << factor << ", noise " << noise);
      fit_ = {};
      machine_ = {.base = 3'000, .decode = 300, .token = 300, .attended = 0.02, .noise = noise};
      prompt(16, 0, 16'384);
      machine_.slowness = factor;
      const auto steps = prompt(16, 0, 16'384);
      ASSERT_GT(steps.size(), StepTimeFit::kSurprisesMax + 4);
      EXPECT_LE(worst(steps, StepTimeFit::kSurprisesMax), 1.05 + 2.5 * noise);
      for (size_t i = StepTimeFit::kSurprisesMax + 4; i + 1 < steps.size(); ++i) {
        EXPECT_GE(steps[i].num_tokens + kBlock, 0.6 * ideal_chunk(16, 16'384)) << "step " << i;
      }
    }
  }
}

TEST_F(StepTimeFitTest, AHiccupIsNotTakenForTheNewSpeed) {
  prompt(16, 0, 4096);
  machine_.slowness = 2;
  const StepLoad load = StepLoad{.num_decodes = 16}.with_chunk(1024, 64);
  for (const double hiccup : {1.0, 10.0, 1.0}) {
    fit_.observe(load, static_cast<uint64_t>(hiccup * machine_.exact(load)));
  }
  EXPECT_NEAR(fit_.predict(load) / machine_.exact(load), 1.0, 0.15);
}

TEST_F(StepTimeFitTest, LearnsACostThatChangesAlone) {
  machine_.noise = 0.03;
  const auto expect_near = [&](const StepLoad& load) {
    EXPECT_NEAR(fit_.predict(load) / machine_.exact(load), 1.0, 0.1) << load.num_decodes;
  };
  prompt(16, 0, 4096);
  for (int i = 0; i < 400; ++i) {  // the decodes' contexts grow, to four times the cost
    machine_.decode *= 1.0035;
    decode(16, 3);
    prompt(16, 0, 64);
  }
  expect_near({.num_decodes = 16});
  expect_near(StepLoad{.num_decodes = 16}.with_chunk(0, 64));
}

TEST_F(StepTimeFitTest, WhatIsNotSeenFollowsWhatIs) {
  machine_.noise = 0.03;
  prompt(16, 0, 4096);
  machine_.slowness = 3;
  decode(16, 500);
  EXPECT_LE(prompt(16, 0, 64)[0].share, 1.1) << "only decodes told of the change";
  machine_.slowness = 1;
  decode(16, 500);
  for (int i = 0; i < 100; ++i) {  // and now it comes by and by
    machine_.slowness *= 1.012;
    decode(16, 5);
  }
  EXPECT_LE(prompt(16, 0, 256)[0].share, 1.1);
}

TEST_F(StepTimeFitTest, ChunksAreSafeWhereOnlyDecodesWereSeen) {
  for (const uint32_t num_decodes : {1u, 16u, 100u}) {
    fit_ = {};
    machine_.noise = 0.03;
    decode(num_decodes, 1000);
    const auto steps = prompt(num_decodes, 0, 2048);
    EXPECT_LE(worst(steps), 1.2) << num_decodes;
    EXPECT_LE(worst(steps, 2), 1.1) << num_decodes;
  }
}

TEST_F(StepTimeFitTest, DecodesAreSafeWhereOnlyFullChunksWereSeen) {
  machine_.decode = 3'000;  // long contexts
  for (int i = 0; i < 50; ++i) prompt(0, 0, 1024);
  const auto steps = prompt(32, 0, 2048);
  EXPECT_LE(worst(steps), 1.25);
  EXPECT_LE(worst(steps, 3), 1.1);
}

TEST_F(StepTimeFitTest, KeepsTheBoundWhileTheContextGrows) {
  for (const double small_chunks : {0.0, 1.0}) {
    fit_ = {};
    machine_ = {.token = 700, .small_chunks = small_chunks, .noise = 0.03};
    const auto steps = prompt(4, 0, 16'384);
    EXPECT_LE(worst(steps), 1.2);
    EXPECT_LE(steps.back().num_tokens, steps[4].num_tokens / 2) << "the context must matter";
  }
}

// The case for the context term: after short prompts, one that continues far in a cached prefix.
TEST_F(StepTimeFitTest, KeepsTheBoundForAPrefixHitAfterShortPrompts) {
  machine_ = {.token = 700, .noise = 0.03};
  for (int i = 0; i < 30; ++i) prompt(4, 0, 600);
  EXPECT_LE(worst(prompt(4, 6'000, 7'000)), 1.2);
  for (int i = 0; i < 30; ++i) prompt(4, 0, 600);
  const auto steps = prompt(4, 0, 600);
  EXPECT_GE(steps[0].num_tokens, 0.6 * ideal_chunk(4, 0)) << "short ones do not pay for it";
}

TEST_F(StepTimeFitTest, StaysSaneWhateverItIsTold) {
  std::mt19937_64 random(3);
  StepTimeFit twin;
  for (int i = 0; i < 20'000; ++i) {
    StepLoad load{.num_decodes = static_cast<uint32_t>(random() % 3 * (random() % 1000))};
    if (random() % 2) load = load.with_chunk(random() % 100'000, 1 + random() % 4096);
    const uint64_t duration = 1 + random() % (uint64_t{1} << (1 + random() % 45));
    fit_.observe(load, duration);
    twin.observe(load, duration);
    const StepLoad more = StepLoad{.num_decodes = load.num_decodes + 1}.with_chunk(5, 7);
    const double time = fit_.predict(more);
    ASSERT_TRUE(std::isfinite(time) && time >= 0) << "observation " << i;
    ASSERT_EQ(time, twin.predict(more)) << "equal observations, equal answers";
    ASSERT_GE(fit_.predict(more.with_chunk(0, 9)), time) << "no cost is negative";
    ASSERT_LE(fit_.largest_chunk(load, 100, 300, kBound), 300u);
  }
}

}  // namespace
}  // namespace crossdock
