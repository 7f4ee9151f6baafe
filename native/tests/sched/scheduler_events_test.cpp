// Events in unusual states: loads, pins, cancellations, standstills.
#include "crossdock/sched/scheduler.h"
#include "scheduler_fixture.h"

namespace crossdock {
namespace {

using Ids = std::vector<SequenceId>;
constexpr auto kLocal = SequenceRole::kLocal;
constexpr auto kSource = SequenceRole::kSource;

TEST_F(SchedulerTest, ASequenceThatAwaitsALoadIsOvertakenButKeepsItsPlace) {
  make({.num_blocks = 32, .token_budget = 40, .context_tokens_max = 512});
  ASSERT_TRUE(submit(1, ramp(100), 5, kLocal, true).ok());
  EXPECT_TRUE(s().idle());
  EXPECT_EQ(s().num_waiting(), 1u);
  ASSERT_TRUE(submit(2, ramp(40, 200), 5).ok());
  ASSERT_TRUE(submit(3, ramp(40, 300), 5).ok());
  EXPECT_EQ(ids_of(step()), Ids{2});
  s().load_ready(1, 0);
  s().check();
  EXPECT_EQ(ids_of(step()), (Ids{2, 1})) << "2 decodes, then 1 is admitted before 3";
}

TEST_F(SchedulerTest, LoadsWhatTheTreeLacksAndRecomputesWhatDidNotArrive) {
  make({.num_blocks = 32, .context_tokens_max = 512});
  ASSERT_TRUE(submit(1, ramp(40), 1).ok());
  step();
  finish(1);
  ASSERT_TRUE(submit(2, ramp(200), 5, kSource, true).ok());
  s().load_ready(2, 99);  // more than can be used: 6 whole blocks before the last token
  StepPlan plan = step();
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.started, Ids{2});
  ASSERT_EQ(plan.loads.size(), 1u);
  EXPECT_EQ(plan.loads[0].first_block, 1u);
  EXPECT_EQ(plan.loads[0].num_blocks, 5u);
  EXPECT_EQ(s().state(2), SequenceState::kLoading);
  EXPECT_EQ(s().block_table(2).size(), 7u);
  EXPECT_TRUE(s().idle());
  EXPECT_EQ(s().tree().num_blocks(), 1u);
  s().loaded(2, 3, tick_);
  s().check();
  EXPECT_EQ(s().num_cached_tokens(2), 128u);
  EXPECT_EQ(s().tree().num_blocks(), 4u) << "what arrived is final";
  plan = step();
  ASSERT_EQ(ids_of(plan), Ids{2});
  EXPECT_EQ(plan.entries[0].first_position, 128u);
  EXPECT_EQ(plan.entries[0].num_tokens, 72u);
}

TEST_F(SchedulerTest, ASourceIsHeldBackWhileItsPeersBlocksAreRead) {
  make({.num_blocks = 32, .token_budget = 64, .context_tokens_max = 512});
  ASSERT_TRUE(submit(1, ramp(200), 1, kSource).ok());
  StepPlan plan = this->plan();
  ASSERT_EQ(ids_of(plan), Ids{1});
  EXPECT_FALSE(s().load_more(1, 6).has_value()) << "a step is computing it";
  s().step_done({}, tick_);
  EXPECT_FALSE(s().load_more(1, 2).has_value()) << "it lacks none of these";
  const auto order = s().load_more(1, 5);
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(order->first_block, 2u);
  EXPECT_EQ(order->num_blocks, 3u);
  EXPECT_FALSE(s().load_more(1, 6).has_value()) << "it is being loaded";
  EXPECT_TRUE(step().empty());
  s().check();
  EXPECT_EQ(s().tree().num_blocks(), 2u) << "only what has arrived is in the tree";
  s().loaded(1, 3, tick_);
  EXPECT_EQ(s().tree().num_blocks(), 5u);
  EXPECT_EQ(s().num_cached_tokens(1), 96u) << "what it computed itself is no hit";
  plan = step();
  ASSERT_EQ(ids_of(plan), Ids{1});
  EXPECT_EQ(plan.entries[0].first_position, 160u);
  EXPECT_TRUE(plan.entries[0].wants_logits);
  finish(1);
  s().check();
}

TEST_F(SchedulerTest, AFailedReadIsRecomputedFromTheLastWholeBlock) {
  make({.num_blocks = 32, .token_budget = 40, .chunked_prefill = true, .context_tokens_max = 512});
  ASSERT_TRUE(submit(1, ramp(200), 1, kSource).ok());
  step();
  ASSERT_EQ(s().num_computed(1), 32u);
  ASSERT_TRUE(s().load_more(1, 6).has_value());
  s().loaded(1, 0, tick_);
  s().check();
  EXPECT_EQ(s().num_cached_tokens(1), 0u);
  const StepPlan plan = step();
  ASSERT_EQ(ids_of(plan), Ids{1});
  EXPECT_EQ(plan.entries[0].first_position, 32u);
}

TEST_F(SchedulerTest, ASourceThatAwaitsItsGrantHoldsItsBlocksAndComputesNothing) {
  make({.num_blocks = 32, .context_tokens_max = 512});
  for (const bool read : {false, true}) {
    const SequenceId id = read ? 2 : 1;
    ASSERT_TRUE(s().submit({.id = id,
                            .role = kSource,
                            .prompt = ramp(100, 7 * static_cast<int32_t>(id)),
                            .max_new_tokens = 1,
                            .awaits_grant = true})
                    .ok());
    StepPlan plan = step();
    EXPECT_EQ(plan.started, Ids{id});
    EXPECT_TRUE(plan.empty());
    EXPECT_EQ(s().block_table(id).size(), 4u);
    EXPECT_TRUE(s().idle());
    if (read) {
      ASSERT_EQ(s().load_more(id, 2)->num_blocks, 2u);
    }
    s().loaded(id, read ? 2 : 0, tick_);
    s().check();
    plan = step();
    ASSERT_EQ(ids_of(plan), Ids{id});
    EXPECT_EQ(plan.entries[0].first_position, read ? 64u : 0u);
    finish(id);
  }
  s().check();
}

TEST_F(SchedulerTest, ALoadThatTheTreeCoversIsNotOrdered) {
  make({.num_blocks = 32, .context_tokens_max = 512});
  ASSERT_TRUE(submit(1, ramp(96), 1).ok());
  step();
  finish(1);
  ASSERT_TRUE(submit(2, ramp(200), 5, kLocal, true).ok());
  s().load_ready(2, 3);
  const StepPlan plan = step();
  EXPECT_TRUE(plan.loads.empty());
  EXPECT_EQ(plan.entries[0].first_position, 96u);
}

TEST_F(SchedulerTest, AnswersForACancelledLoadAreIgnored) {
  make({.num_blocks = 32, .context_tokens_max = 512});
  ASSERT_TRUE(submit(1, ramp(100), 5, kLocal, true).ok());
  finish(1);
  s().load_ready(1, 2);
  ASSERT_TRUE(submit(2, ramp(100), 5, kLocal, true).ok());
  s().load_ready(2, 2);
  step();
  ASSERT_EQ(s().state(2), SequenceState::kLoading);
  finish(2);  // its reads have ended
  EXPECT_EQ(s().pool().num_free(), 32u);
  s().loaded(2, 2, tick_);
  s().check();
  EXPECT_EQ(s().num_running(), 0u);
  EXPECT_EQ(s().tree().num_blocks(), 0u);
  EXPECT_TRUE(s().idle());
}

TEST_F(SchedulerTest, APreemptedSequenceIsNotLoadedAgain) {
  // The watermarks are so low that nothing stays cached.
  make({.num_blocks = 4, .context_tokens_max = 128, .high_watermark = 0.5, .low_watermark = 0.25});
  ASSERT_TRUE(submit(1, ramp(31, 200), 60).ok());
  ASSERT_TRUE(submit(2, ramp(40), 60, kLocal, true).ok());
  s().load_ready(2, 1);
  ASSERT_EQ(step().loads.size(), 1u);
  s().loaded(2, 1, tick_);
  steps(34);
  EXPECT_EQ(s().state(2), SequenceState::kWaiting) << "preempted";
  step();
  finish(1);
  const StepPlan plan = step();
  EXPECT_EQ(plan.started, Ids{2});
  EXPECT_TRUE(plan.loads.empty()) << "the outer tier's lease is over";
  ASSERT_EQ(ids_of(plan), Ids{2});
  EXPECT_EQ(plan.entries[0].first_position, 0u);
  EXPECT_EQ(s().num_cached_tokens(2), 32u) << "the hit was one, even so";
}

TEST_F(SchedulerTest, PinnedBlocksOutliveTheirSequence) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(100), 1).ok());
  step();
  const std::vector<BlockId> whole(s().block_table(1).begin(), s().block_table(1).begin() + 3);
  s().pin(whole);
  s().check();
  finish(1);
  ASSERT_TRUE(submit(2, ramp(50, 200), 5).ok());
  EXPECT_TRUE(step().empty()) << "a write-back still reads three of the four";
  EXPECT_TRUE(s().idle());
  s().unpin(std::span(whole).first(2));
  s().check();
  EXPECT_FALSE(s().idle());
  EXPECT_TRUE(step().empty()) << "those above a pinned block stay";
  s().unpin(std::span(whole).last(1));
  s().check();
  EXPECT_EQ(ids_of(step()), Ids{2});
}

TEST_F(SchedulerTest, ItsOwnDuplicatesDoNotBringASequenceToAStandstill) {
  // Two twins compute the same 3 blocks at once; the second keeps its own, and its generated
  // blocks stand in the tree under the first one's. With the first gone, 3 cached blocks that
  // nobody references cannot be evicted, and the second cannot grow.
  make({.num_blocks = 10, .context_tokens_max = 320});
  ASSERT_TRUE(submit(1, ramp(97), 2).ok());
  ASSERT_TRUE(submit(2, ramp(97), 200).ok());
  step();
  step();
  EXPECT_EQ(s().pool().num_owned(), 5u);
  finish(1);
  uint32_t num_preemptions = 0;
  for (int i = 0; i < 220 && s().tokens(2).size() < 297; ++i) {
    num_preemptions += static_cast<uint32_t>(step().preempted.size());
  }
  EXPECT_EQ(s().tokens(2).size(), 297u);
  EXPECT_EQ(num_preemptions, 1u);
  finish(2);
  EXPECT_EQ(s().pool().num_free() + s().pool().num_cached_unreferenced(), 10u);
}

TEST_F(SchedulerTest, ALoneDecodeWaitsForWhatOthersHold) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(31), 90).ok());
  ASSERT_TRUE(submit(2, ramp(60, 200), 1, kSource).ok());
  step();
  ASSERT_EQ(s().state(2), SequenceState::kHeld);
  steps(33);
  const StepPlan plan = step();
  EXPECT_TRUE(plan.empty());
  EXPECT_TRUE(plan.preempted.empty()) << "to give up its own blocks would win it nothing";
  EXPECT_TRUE(s().idle());
  finish(2);
  EXPECT_EQ(ids_of(step()), Ids{1});
}

TEST_F(SchedulerTest, ALoneDecodeWaitsForPinnedBlocks) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(2, ramp(64, 200), 1).ok());
  step();
  const std::vector<BlockId> pinned(s().block_table(2).begin(), s().block_table(2).end());
  s().pin(pinned);
  finish(2);
  ASSERT_TRUE(submit(1, ramp(31), 90).ok());
  steps(34);
  ASSERT_EQ(s().num_computed(1), 64u);
  const StepPlan plan = step();
  EXPECT_TRUE(plan.empty() && plan.preempted.empty());
  s().unpin(pinned);
  EXPECT_EQ(ids_of(step()), Ids{1});
}

TEST_F(SchedulerTest, NobodyIsAdmittedWhileADecodeLacksABlock) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(31), 90).ok());
  step();
  ASSERT_TRUE(reserve(2, ramp(33, 300), 5).ok());
  steps(33);
  ASSERT_TRUE(submit(3, ramp(5, 400), 5).ok());
  EXPECT_EQ(step().revoke, Ids{2});
  s().quarantine(2);
  s().end_quarantine(2);
  const StepPlan plan = step();
  EXPECT_EQ(ids_of(plan), (Ids{1})) << "two came back: one for 1, and one is left for its next";
  EXPECT_FALSE(reserve(4, ramp(5, 500), 5).ok()) << "3 came earlier and waits";
  finish(1);
  EXPECT_EQ(ids_of(step()), Ids{3});
}

TEST_F(SchedulerTest, AGrantDoesNotOvertakeTheQueue) {
  make({.num_blocks = 8, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(20), 100).ok());
  step();
  ASSERT_TRUE(submit(2, ramp(200, 300), 5).ok());  // 7 blocks: all that are free, but one is 1's
  EXPECT_EQ(ids_of(step()), Ids{1});
  const auto refused = reserve(3, ramp(5, 600), 5);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  finish(2);
  EXPECT_TRUE(reserve(3, ramp(5, 600), 5).ok());
}

TEST_F(SchedulerTest, TheNumberOfSequencesIsBounded) {
  make({.num_blocks = 32, .num_sequences_max = 2, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(5), 50).ok());
  step();
  ASSERT_TRUE(reserve(2, ramp(5, 100), 50).ok());
  const auto refused = reserve(3, ramp(5, 200), 50);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(submit(4, ramp(5, 300), 50).ok());
  EXPECT_EQ(ids_of(step()), Ids{1});
  activate(2);
  EXPECT_EQ(ids_of(step()), (Ids{1, 2}));
  finish(1);
  EXPECT_EQ(ids_of(step()), (Ids{2, 4}));
}

TEST_F(SchedulerTest, FinishIsLegalInEveryStateButQuarantined) {
  make({.num_blocks = 32, .token_budget = 32, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(100), 5).ok());
  finish(1);  // waiting
  ASSERT_TRUE(submit(1, ramp(100), 5, kLocal, true).ok());
  finish(1);  // awaiting
  ASSERT_TRUE(submit(1, ramp(100), 5).ok());
  step();
  finish(1);  // half computed
  ASSERT_TRUE(submit(1, ramp(10, 200), 5, kSource).ok());
  plan();
  finish(1);  // in the step
  s().step_done({}, tick_);
  s().check();
  ASSERT_TRUE(reserve(1, ramp(100), 5).ok());
  finish(1);  // reserved
  EXPECT_EQ(s().pool().num_owned(), 0u);
  EXPECT_EQ(s().num_waiting(), 0u);
  ASSERT_TRUE(reserve(1, ramp(100), 5).ok());
  s().quarantine(1);
  EXPECT_DEATH(s().finish(1), "end_quarantine");
  EXPECT_DEATH(s().finish(2), "no such sequence");
  EXPECT_DEATH(s().activate(1, 0, tick_), "kReserved");
}

TEST_F(SchedulerTest, ADoneStepNeedsAResultForEachThatWantsLogits) {
  make({.num_blocks = 32, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(10), 5).ok());
  plan();
  EXPECT_DEATH(s().step_done({}, tick_), "one result for each");
}

}  // namespace
}  // namespace crossdock
