#include "crossdock/sched/scheduler.h"

#include "scheduler_fixture.h"

namespace crossdock {
namespace {

using Ids = std::vector<SequenceId>;
constexpr auto kSource = SequenceRole::kSource;

bool says(const Status& status, StatusCode code, std::string_view part) {
  return status.code() == code && status.message().find(part) != std::string::npos;
}

TEST_F(SchedulerTest, RunsALocalSequenceToItsEnd) {
  make({.num_blocks = 8, .context_tokens_max = 256});
  EXPECT_TRUE(s().idle());
  ASSERT_TRUE(submit(1, ramp(40), 30).ok());
  EXPECT_FALSE(s().idle());
  EXPECT_EQ(s().state(1), SequenceState::kWaiting);
  StepPlan plan = step();
  ASSERT_EQ(plan.entries.size(), 1u);
  EXPECT_EQ(plan.started, Ids{1});
  EXPECT_EQ(plan.num_decodes, 0u);
  EXPECT_EQ(plan.entries[0].first_position, 0u);
  EXPECT_EQ(plan.entries[0].num_tokens, 40u);
  EXPECT_TRUE(plan.entries[0].wants_logits);
  for (uint32_t i = 1; i < 30; ++i) {
    EXPECT_EQ(s().num_computed(1), 39 + i);
    plan = step();
    ASSERT_EQ(plan.entries.size(), 1u);
    EXPECT_EQ(plan.num_decodes, 1u);
    EXPECT_EQ(plan.entries[0].first_position, 39 + i);
    EXPECT_EQ(plan.entries[0].num_tokens, 1u);
  }
  EXPECT_EQ(s().tokens(1).size(), 70u);
  EXPECT_EQ(s().tokens(1)[40], 5000);
  EXPECT_EQ(s().chain(1).size(), 2u);
  EXPECT_TRUE(step().empty()) << "no token is computed beyond max_new_tokens";
  EXPECT_TRUE(s().idle());
  finish(1);
  EXPECT_FALSE(s().contains(1));
  EXPECT_EQ(s().tree().num_blocks(), 2u) << "its full blocks stay cached";
  EXPECT_EQ(s().pool().num_free(), 6u);
}

TEST_F(SchedulerTest, ATokenThatFinishesEndsTheSequence) {
  make({.num_blocks = 8, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(10), 30).ok());
  plan();
  const TokenResult last{0, 7, true};
  s().step_done({&last, 1}, tick_);
  s().check();
  EXPECT_TRUE(step().empty());
  EXPECT_TRUE(s().idle());
}

TEST_F(SchedulerTest, RefusesWhatCanNeverFit) {
  make({.num_blocks = 4, .context_tokens_max = 200});
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  EXPECT_TRUE(says(submit(1, {}, 5), kInvalid, "prompt"));
  EXPECT_TRUE(says(submit(1, ramp(5), 0), kInvalid, "max_new_tokens"));
  EXPECT_TRUE(says(submit(1, ramp(200), 1), kInvalid, "prompt: 200 tokens; the context holds 200"));
  EXPECT_TRUE(says(submit(1, ramp(100), 101), kInvalid, "max_new_tokens: 101"));
  EXPECT_TRUE(says(submit(1, ramp(100), 30), kInvalid, "max_new_tokens: the request needs 5"));
  EXPECT_TRUE(says(submit(1, ramp(129), 1), kInvalid, "prompt: the request needs 5"));
  EXPECT_TRUE(says(submit(1, ramp(129), 1, kSource), kInvalid, "the pool has 4"));
  EXPECT_TRUE(says(reserve(1, ramp(129), 1).status(), kInvalid, "the pool has 4"));
  EXPECT_TRUE(says(submit(1, ramp(5), UINT32_MAX), kInvalid, "max_new_tokens"));
  EXPECT_FALSE(s().contains(1));
  EXPECT_TRUE(submit(1, ramp(100), 29).ok()) << "the last token needs no slot";
  EXPECT_TRUE(submit(2, ramp(128), 1).ok());
  EXPECT_TRUE(submit(3, ramp(128), 99, kSource).ok()) << "a source computes one token";
  EXPECT_TRUE(says(submit(1, ramp(5), 5), StatusCode::kAlreadyExists, "sequence 1"));
  EXPECT_TRUE(says(reserve(2, ramp(5), 5).status(), StatusCode::kAlreadyExists, "sequence 2"));
}

TEST_F(SchedulerTest, SplitsAPromptIntoChunksOfTheBudget) {
  make({.num_blocks = 400, .context_tokens_max = 8192});
  ASSERT_TRUE(submit(1, ramp(5000), 2).ok());
  ASSERT_TRUE(submit(2, ramp(100, 9000), 2).ok());
  StepPlan plan = step();
  EXPECT_EQ(ids_of(plan), Ids{1});
  EXPECT_EQ(plan.entries[0].num_tokens, 2048u);
  EXPECT_FALSE(plan.entries[0].wants_logits);
  plan = step();
  EXPECT_EQ(plan.entries[0].first_position, 2048u);
  plan = step();
  ASSERT_EQ(ids_of(plan), (Ids{1, 2})) << "what the last chunk leaves of the budget is used";
  EXPECT_EQ(plan.entries[0].num_tokens, 904u);
  EXPECT_TRUE(plan.entries[0].wants_logits);
  EXPECT_EQ(plan.entries[1].num_tokens, 100u);
}

TEST_F(SchedulerTest, DecodesComeFirstAndShrinkTheChunk) {
  for (const auto& [num_decodes, chunk] :
       std::vector<std::pair<uint32_t, uint32_t>>{{32, 2016}, {33, 1024}, {64, 1024}, {65, 512}}) {
    make({.num_blocks = 1000, .context_tokens_max = 8192});
    for (uint32_t i = 0; i < num_decodes; ++i) {
      ASSERT_TRUE(submit(i, {static_cast<int32_t>(i)}, 50).ok());
    }
    step();
    ASSERT_TRUE(submit(100, ramp(5000), 5).ok());
    const StepPlan plan = step();
    ASSERT_EQ(plan.entries.size(), num_decodes + 1);
    EXPECT_EQ(plan.num_decodes, num_decodes);
    for (uint32_t i = 0; i < num_decodes; ++i) EXPECT_EQ(plan.entries[i].id, i);
    EXPECT_EQ(plan.entries.back().id, 100u);
    EXPECT_EQ(plan.entries.back().num_tokens, chunk);
  }
}

TEST_F(SchedulerTest, NeverPlansMoreThanTheBudget) {
  make({.num_blocks = 100, .token_budget = 4, .context_tokens_max = 256});
  for (SequenceId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(submit(id, ramp(3, 10 * static_cast<int32_t>(id)), 100).ok());
  }
  for (int i = 0; i < 20; ++i) {
    uint32_t num_tokens = 0;
    for (const PlanEntry& entry : step().entries) num_tokens += entry.num_tokens;
    EXPECT_LE(num_tokens, 4u);
  }
  EXPECT_EQ(s().num_running(), 4u) << "each running decode has its token in every step";
  EXPECT_EQ(s().num_waiting(), 2u);
}

TEST_F(SchedulerTest, MatchesAtMostUpToTheLastToken) {
  make({.num_blocks = 32, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(64), 1).ok());
  step();
  finish(1);
  EXPECT_EQ(s().tree().num_blocks(), 2u);
  ASSERT_TRUE(submit(2, ramp(64), 1).ok());
  EXPECT_EQ(step().entries[0].first_position, 32u) << "the last token's logits are needed";
  EXPECT_EQ(s().num_cached_tokens(2), 32u);
  ASSERT_TRUE(submit(3, ramp(65), 1).ok());
  EXPECT_EQ(step().entries[0].first_position, 64u);
  EXPECT_EQ(s().num_cached_tokens(3), 64u);
  ASSERT_TRUE(submit(4, ramp(32), 1).ok());
  EXPECT_EQ(step().entries[0].first_position, 0u);
}

TEST_F(SchedulerTest, PublishesABlockOnceItIsFull) {
  make({.num_blocks = 8, .token_budget = 48, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(100), 30).ok());
  plan();
  EXPECT_EQ(s().tree().num_blocks(), 0u) << "its bytes are not final before the step is done";
  done(s().plan(++tick_));
  EXPECT_EQ(s().tree().num_blocks(), 1u);
  step();
  EXPECT_EQ(s().tree().num_blocks(), 2u);
  step();
  EXPECT_EQ(s().num_computed(1), 100u);
  EXPECT_EQ(s().tree().num_blocks(), 3u);
  steps(26);
  EXPECT_EQ(s().num_computed(1), 126u);
  steps(1);
  EXPECT_EQ(s().tree().num_blocks(), 3u);
  steps(1);
  EXPECT_EQ(s().num_computed(1), 128u);
  EXPECT_EQ(s().tree().num_blocks(), 4u);
}

TEST_F(SchedulerTest, ASourceHoldsItsBlocksUntilItIsFinished) {
  make({.num_blocks = 4, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(100), 50, kSource).ok());
  step();
  EXPECT_EQ(s().state(1), SequenceState::kHeld);
  EXPECT_EQ(s().tokens(1).size(), 101u);
  EXPECT_EQ(s().block_table(1).size(), 4u);
  EXPECT_EQ(s().num_running(), 0u);
  ASSERT_TRUE(submit(2, ramp(33, 500), 5).ok());
  EXPECT_TRUE(step().empty()) << "every block may still be read by the peer";
  EXPECT_TRUE(s().idle()) << "only an event can change that";
  finish(1);
  EXPECT_FALSE(s().idle());
  EXPECT_EQ(ids_of(step()), Ids{2});
}

TEST_F(SchedulerTest, AdmissionIsInArrivalOrderAndLeavesABlockForEachRunning) {
  make({.num_blocks = 8, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(20), 100).ok());
  ASSERT_TRUE(submit(2, ramp(20, 100), 100).ok());
  step();
  ASSERT_TRUE(submit(3, ramp(160, 200), 50).ok());  // 5 blocks; 6 are free, 2 must be left
  ASSERT_TRUE(submit(4, ramp(5, 500), 5).ok());     // fits, but came later
  EXPECT_EQ(ids_of(step()), (Ids{1, 2}));
  EXPECT_EQ(s().num_waiting(), 2u);
  finish(2);
  EXPECT_EQ(ids_of(step()), (Ids{1, 3})) << "5 of 7, one left for 1; then 4 finds none";
  finish(1);
  EXPECT_EQ(ids_of(step()), (Ids{3, 4}));
}

TEST_F(SchedulerTest, AHalfComputedPromptDoesNotWaitBehindTheQueue) {
  make({.num_blocks = 64, .token_budget = 64, .context_tokens_max = 1024});
  ASSERT_TRUE(submit(1, ramp(200), 5).ok());
  step();
  ASSERT_TRUE(submit(2, ramp(10, 500), 5).ok());
  EXPECT_EQ(ids_of(step()), Ids{1});
  EXPECT_EQ(ids_of(step()), Ids{1});
  const StepPlan plan = step();
  EXPECT_EQ(ids_of(plan), (Ids{1, 2}));
  EXPECT_EQ(plan.entries[0].num_tokens, 8u);
}

TEST_F(SchedulerTest, EvictsFromTheHighWatermarkDownToTheLowOne) {
  make({.num_blocks = 100, .context_tokens_max = 4096});
  ASSERT_TRUE(submit(1, ramp(88 * 32), 1).ok());
  step();
  step();
  finish(1);
  EXPECT_TRUE(step().empty());
  EXPECT_EQ(s().tree().num_blocks(), 88u) << "at the high watermark nothing happens";
  ASSERT_TRUE(submit(2, ramp(40, 9000), 2).ok());
  step();
  EXPECT_EQ(s().pool().num_free(), 10u);
  step();
  EXPECT_EQ(s().pool().num_free(), 20u) << "above it the tree shrinks until 80 are in use";
  EXPECT_EQ(s().tree().num_blocks(), 79u);
  EXPECT_EQ(s().pool().num_owned(), 1u);
}

TEST_F(SchedulerTest, PreemptsTheNewestAndKeepsItsTokens) {
  make({.num_blocks = 3, .context_tokens_max = 96});
  ASSERT_TRUE(submit(1, ramp(31), 60).ok());
  ASSERT_TRUE(submit(2, ramp(25, 200), 60).ok());
  step();  // 1 of 3 free: 2 needs one and must leave one
  EXPECT_EQ(s().num_running(), 2u);
  steps(7);  // 1 takes the third block at position 32
  EXPECT_EQ(s().block_table(1).size(), 2u);
  const std::vector<int32_t> tokens(s().tokens(2).begin(), s().tokens(2).end());
  EXPECT_EQ(s().num_computed(2), 32u);
  const StepPlan plan = step();
  EXPECT_EQ(plan.preempted, Ids{2});
  EXPECT_EQ(ids_of(plan), Ids{1});
  EXPECT_EQ(s().state(2), SequenceState::kWaiting);
  EXPECT_EQ(std::vector<int32_t>(s().tokens(2).begin(), s().tokens(2).end()), tokens);
  EXPECT_EQ(s().num_computed(2), 0u);
  EXPECT_EQ(s().chain(2).size(), 1u);
  ASSERT_TRUE(submit(3, ramp(5, 400), 5).ok());
  EXPECT_EQ(ids_of(step()), Ids{1}) << "nobody overtakes the preempted one";
  finish(1);
  const StepPlan resumed = step();
  EXPECT_EQ(resumed.started, Ids{2}) << "the third block is left for it";
  EXPECT_EQ(s().num_cached_tokens(2), 0u) << "what it recomputes or finds again is no cache hit";
}

TEST_F(SchedulerTest, PreemptsAtMostOneAStep) {
  make({.num_blocks = 8, .context_tokens_max = 256, .high_watermark = 1.0});
  for (const SequenceId id : {1, 2, 3, 4}) {
    ASSERT_TRUE(submit(id, ramp(31, 100 * static_cast<int32_t>(id)), 90).ok());
  }
  steps(34);  // each holds two full blocks, and all lack their third
  ASSERT_EQ(s().num_computed(4), 64u);
  StepPlan plan = step();
  EXPECT_EQ(plan.preempted, Ids{4});
  EXPECT_EQ(ids_of(plan), (Ids{1, 2})) << "its two blocks serve two";
  EXPECT_EQ(s().state(3), SequenceState::kRunning);
  plan = step();
  EXPECT_EQ(plan.preempted, Ids{3});
  EXPECT_EQ(ids_of(plan), (Ids{1, 2}));
  finish(1);
  plan = step();
  ASSERT_EQ(ids_of(plan), (Ids{2, 3}));
  EXPECT_EQ(plan.entries[1].first_position, 64u) << "it finds its own blocks again,";
  EXPECT_EQ(s().num_cached_tokens(3), 0u) << "which is no cache hit";
}

TEST_F(SchedulerTest, AGrantLeavesABlockForEveryRunningSequence) {
  make({.num_blocks = 8, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(20), 100).ok());
  ASSERT_TRUE(submit(2, ramp(20, 100), 100).ok());
  step();
  const auto refused = reserve(3, ramp(160, 300), 5);
  EXPECT_TRUE(says(refused.status(), StatusCode::kResourceExhausted, "needs 5 blocks beside one"));
  EXPECT_FALSE(s().contains(3));
  EXPECT_TRUE(reserve(4, ramp(128, 300), 5).ok());
  EXPECT_EQ(s().pool().num_free(), 2u);
  EXPECT_FALSE(reserve(5, ramp(5, 600), 5).ok());
}

TEST_F(SchedulerTest, ATargetRunsFromTheFirstToken) {
  make({.num_blocks = 16, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(64), 1).ok());
  step();
  finish(1);
  const auto grant = reserve(2, ramp(80), 20);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant.value().num_matched_blocks, 2u);
  EXPECT_EQ(grant.value().blocks.size(), 3u);
  EXPECT_EQ(s().num_cached_tokens(2), 64u);
  EXPECT_EQ(s().state(2), SequenceState::kReserved);
  EXPECT_TRUE(step().empty());
  EXPECT_TRUE(s().idle());
  activate(2);
  EXPECT_FALSE(s().idle());
  EXPECT_EQ(s().num_computed(2), 80u);
  const StepPlan plan = step();
  EXPECT_EQ(plan.num_decodes, 1u);
  EXPECT_EQ(plan.entries[0].first_position, 80u);
  EXPECT_EQ(s().tokens(2)[80], 1000);
  finish(2);
}

TEST_F(SchedulerTest, ATargetsPromptIsPublishedWhenItIsActivated) {
  make({.num_blocks = 16, .context_tokens_max = 256});
  ASSERT_TRUE(reserve(1, ramp(64), 20).ok());
  EXPECT_EQ(s().tree().num_blocks(), 0u);
  activate(1);
  EXPECT_EQ(s().tree().num_blocks(), 2u);
  const auto grant = reserve(2, ramp(65), 20);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant.value().num_matched_blocks, 2u);
}

TEST_F(SchedulerTest, QuarantinedBlocksAreNobodysUntilItEnds) {
  make({.num_blocks = 8, .context_tokens_max = 256, .quarantine_max = 0.25});
  ASSERT_TRUE(submit(9, ramp(32), 1).ok());
  step();
  finish(9);
  ASSERT_TRUE(reserve(1, ramp(100), 20).ok());
  s().quarantine(1);
  s().check();
  EXPECT_EQ(s().state(1), SequenceState::kQuarantined);
  EXPECT_EQ(s().pool().num_quarantined(), 3u) << "the matched block is not written";
  EXPECT_EQ(s().pool().num_cached_unreferenced(), 0u) << "but the peer may still read it";
  EXPECT_TRUE(says(reserve(2, ramp(5), 5).status(), StatusCode::kResourceExhausted, "quarantine"));
  ASSERT_TRUE(submit(3, ramp(150, 300), 5).ok());
  EXPECT_TRUE(step().empty()) << "4 are free, and the cached one is not to be evicted";
  s().end_quarantine(1);
  s().check();
  EXPECT_FALSE(s().contains(1));
  EXPECT_EQ(s().pool().num_free(), 7u);
  EXPECT_EQ(s().pool().num_cached_unreferenced(), 1u);
  EXPECT_EQ(ids_of(step()), Ids{3});
  EXPECT_TRUE(reserve(2, ramp(5), 5).ok());
}

TEST_F(SchedulerTest, RevokesTheNewestGrantOneAtATime) {
  make({.num_blocks = 6, .context_tokens_max = 256});
  ASSERT_TRUE(submit(1, ramp(31), 150).ok());
  step();
  ASSERT_TRUE(reserve(2, ramp(5, 300), 5).ok());
  ASSERT_TRUE(reserve(3, ramp(5, 400), 5).ok());
  ASSERT_FALSE(reserve(4, ramp(65, 500), 5).ok()) << "3 are free and 3 may need their next";
  steps(97);
  EXPECT_EQ(s().num_computed(1), 128u);
  StepPlan plan = step();
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.revoke, Ids{3});
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_TRUE(step().revoke.empty()) << "one block is coming, and one is needed";
  finish(3);  // refused by the peer before any write: its block is free at once
  steps(32);
  EXPECT_EQ(s().num_computed(1), 160u);
  plan = step();
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.revoke, Ids{2});
  s().quarantine(2);
  s().end_quarantine(2);
  s().check();
  EXPECT_EQ(ids_of(step()), Ids{1});
}

TEST_F(SchedulerTest, BlocksOnTheirWayBackSpareTheNewest) {
  make({.num_blocks = 6, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(31), 90).ok());
  ASSERT_TRUE(submit(2, ramp(20, 100), 90).ok());
  step();
  ASSERT_TRUE(reserve(3, ramp(33, 300), 5).ok());
  steps(33);  // 1 holds 2 blocks, 2 holds 2, the grant 2
  EXPECT_EQ(s().pool().num_free(), 0u);
  EXPECT_EQ(s().num_computed(1), 64u);
  StepPlan plan = step();
  EXPECT_EQ(ids_of(plan), Ids{2}) << "1 waits for the grant's blocks";
  EXPECT_EQ(plan.revoke, Ids{3});
  plan = step();
  EXPECT_EQ(ids_of(plan), Ids{2});
  EXPECT_TRUE(plan.revoke.empty() && plan.preempted.empty());
  steps(8);
  EXPECT_EQ(s().num_computed(2), 63u);
  step();
  plan = step();  // now both lack one, and nothing makes progress
  EXPECT_EQ(plan.preempted, Ids{2});
  EXPECT_EQ(ids_of(plan), Ids{1});
}

TEST_F(SchedulerTest, WhatAPreemptionFreesGoesToThoseThatStalledBefore) {
  make({.num_blocks = 8, .context_tokens_max = 256});
  for (const SequenceId id : {1, 2, 3}) {
    ASSERT_TRUE(submit(id, ramp(31, 100 * static_cast<int32_t>(id)), 90).ok());
  }
  step();
  ASSERT_TRUE(reserve(4, ramp(5, 400), 5).ok());  // leaves 4: one for each
  steps(33);
  ASSERT_EQ(s().pool().num_free(), 1u);
  const StepPlan plan = step();
  EXPECT_EQ(plan.revoke, Ids{4}) << "1 took the last block; the grant's is for 2";
  EXPECT_EQ(plan.preempted, Ids{3}) << "and for 3 there is none";
  EXPECT_EQ(ids_of(plan), (Ids{1, 2})) << "2 need not wait for the grant any more";
}

TEST_F(SchedulerTest, AStalledDecodeWaitsForARevokedGrantWhileOthersRun) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(31), 90).ok());
  step();
  ASSERT_TRUE(reserve(2, ramp(33, 300), 5).ok());
  step();  // computes position 31; the next needs a block
  EXPECT_EQ(s().pool().num_free(), 1u);
  steps(32);
  EXPECT_EQ(s().pool().num_free(), 0u);
  const StepPlan plan = step();
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.revoke, Ids{2});
  EXPECT_TRUE(plan.preempted.empty()) << "alone, it has nothing to gain";
  EXPECT_TRUE(s().idle());
  s().quarantine(2);
  s().check();
  EXPECT_TRUE(step().empty());
  s().end_quarantine(2);
  s().check();
  EXPECT_FALSE(s().idle());
  EXPECT_EQ(ids_of(step()), Ids{1});
}

TEST_F(SchedulerTest, ARevokedGrantMayStillBeCommitted) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(31), 90).ok());
  step();
  ASSERT_TRUE(reserve(2, ramp(33, 300), 5).ok());
  steps(33);
  ASSERT_EQ(step().revoke, Ids{2});
  activate(2);  // the commit came first
  const StepPlan plan = step();
  EXPECT_EQ(plan.preempted, Ids{2}) << "it runs now, and is the newest";
  EXPECT_EQ(ids_of(plan), Ids{1});
  EXPECT_EQ(s().num_cached_tokens(2), 0u);
}

TEST_F(SchedulerTest, BlocksOfASequenceInTheStepAreNotReusedBeforeItEnds) {
  make({.num_blocks = 4, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(100), 5).ok());
  const StepPlan pending = plan();
  finish(1);
  EXPECT_FALSE(s().contains(1));
  EXPECT_EQ(s().pool().num_free(), 0u) << "the executor is writing into them";
  EXPECT_FALSE(reserve(2, ramp(5), 5).ok());
  ASSERT_TRUE(submit(1, ramp(50, 700), 5).ok()) << "its id is free, though";
  const TokenResult late{0, 9, false};
  s().step_done({&late, 1}, tick_);
  s().check();
  EXPECT_EQ(s().pool().num_free(), 4u);
  EXPECT_EQ(s().tree().num_blocks(), 0u);
  EXPECT_EQ(s().num_computed(1), 0u) << "the newcomer takes nothing of the old one's result";
  EXPECT_EQ(step().entries[0].num_tokens, 50u);
}

TEST_F(SchedulerTest, APlanThatIsNeverDoneLeavesNoTrace) {
  make({.num_blocks = 8, .context_tokens_max = 128});
  ASSERT_TRUE(submit(1, ramp(40), 5).ok());
  ASSERT_TRUE(submit(2, ramp(40, 100), 5).ok());
  plan();
  finish(2);
  EXPECT_EQ(s().pool().num_free(), 4u);
  const StepPlan again = plan();
  EXPECT_EQ(ids_of(again), Ids{1});
  EXPECT_EQ(again.entries[0].first_position, 0u);
  EXPECT_EQ(again.entries[0].num_tokens, 40u);
  EXPECT_EQ(s().pool().num_free(), 6u);
}

}  // namespace
}  // namespace crossdock
