// What a sender posts, in which order, and when it may say that its transfers are over.
#include "crossdock/engine/senders.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "../../src/transfer/spans.h"

namespace crossdock {
namespace {

// Keeps what it is given; the test says when something is done. Untouched memory costs nothing.
class HeldTransfers : public Transfers {
 public:
  explicit HeldTransfers(size_t bytes)
      : bytes_(bytes), memory_(static_cast<std::byte*>(std::calloc(bytes, 1)), &std::free) {}
  std::span<std::byte> segment() override { return {memory_.get(), bytes_}; }
  const EndpointDescriptor& descriptor() const override { return descriptor_; }
  void submit(Operation operation) override { posted.push_back(std::move(operation)); }
  bool drain(std::vector<TransferEvent>&) override { return false; }
  int event_fd() const override { return -1; }

  template <typename Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Operation& operation : posted) {
      if (const auto* kind = std::get_if<Kind>(&operation)) found.push_back(*kind);
    }
    return found;
  }

  std::vector<Operation> posted;

 private:
  size_t bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  EndpointDescriptor descriptor_;
};

constexpr KvLayout kSmall{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
// 4 MiB a block, 256 KiB a layer of it.
constexpr KvLayout kLarge{.num_layers = 16, .num_kv_heads = 8, .head_dim = 128};
constexpr HandoffId kId{1, 2};
constexpr SequenceId kSequence = 5;
constexpr PairId kPair = 1;

class SendersTest : public ::testing::Test {
 protected:
  void make(const KvLayout& layout, uint32_t num_tokens, uint32_t token_budget,
            bool awaits_grant = false, bool readable = true) {
    layout_ = layout;
    transfers_ = std::make_unique<HeldTransfers>(kNumBlocks * layout.stride_bytes() +
                                                 Staging::bytes(layout_));
    scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{
        .num_blocks = kNumBlocks, .token_budget = token_budget, .context_tokens_max = 1024});
    senders_ = std::make_unique<Senders>(layout_, *scheduler_, *transfers_, false);
    std::vector<int32_t> prompt(num_tokens);
    for (uint32_t i = 0; i < num_tokens; ++i) prompt[i] = static_cast<int32_t>(i);
    ASSERT_TRUE(scheduler_
                    ->submit({.id = kSequence,
                              .role = SequenceRole::kSource,
                              .prompt = std::move(prompt),
                              .max_new_tokens = 1,
                              .awaits_grant = awaits_grant})
                    .ok());
    senders_->prepare(kId, kSequence, {kPair, layout_, readable});
  }
  // Target blocks that lie side by side, behind `num_matched` that do not.
  void grant(uint32_t num_blocks, uint32_t num_matched) {
    handoff_action::StartWrites action{.id = kId, .num_matched_blocks = num_matched};
    for (uint32_t i = 0; i < num_blocks; ++i) {
      action.blocks.push_back(i < num_matched ? 14 - 2 * i : i);
    }
    senders_->grant(action, ++tick_);
  }
  // Plans a step and runs its layers; the prompt's last one posts the rest.
  bool step(uint64_t duration_ticks = 0) {
    const StepPlan& plan = scheduler_->plan(++tick_);
    if (!plan.started.empty()) senders_->opened(kId, tick_);
    if (plan.empty()) return false;
    const PlanEntry entry = plan.entries[0];
    const uint32_t end = entry.first_position + entry.num_tokens;
    const uint32_t end_block = entry.wants_logits ? num_prompt_blocks(end) : end / kBlockTokens;
    for (uint32_t layer = 0; layer < layout_.num_layers; ++layer) {
      senders_->post_layers(kId, end_block, layer + 1);
    }
    if (entry.wants_logits) {
      const TokenResult result{.entry_index = 0, .token = 7, .finished = true};
      scheduler_->step_done({&result, 1}, tick_, duration_ticks);
      senders_->post_rest(kId, {.first_token = 7});
    } else {
      scheduler_->step_done({}, tick_, duration_ticks);
      senders_->post_complete(kId, tick_);
    }
    scheduler_->check();
    return true;
  }
  void done(OperationId operation, Status status = {}, uint64_t bytes = 0, uint64_t ns = 0) {
    EXPECT_EQ(senders_->on_done({operation, std::move(status), bytes, 1, ns}, ++tick_), kId);
    scheduler_->check();
  }
  uint32_t num_computed() const { return scheduler_->num_computed(kSequence); }
  bool stopped() const {
    const auto event = senders_->settle(kId);
    return event.has_value() && std::holds_alternative<handoff_event::WritesStopped>(*event);
  }
  // How often each byte range of the target's blocks was written: once, in the end.
  void expect_every_byte_once(uint32_t first_block, uint32_t end_block) const {
    std::map<uint64_t, uint64_t> covered;  // begin to end
    for (const auto& write : transfers_->all<WriteSpans>()) {
      for (const CopySpan& span : write.spans) {
        EXPECT_TRUE(
            covered.emplace(span.remote_offset, span.remote_offset + span.length_bytes).second);
      }
    }
    uint64_t at = first_block * layout_.stride_bytes();
    for (const auto& [begin, end] : covered) {
      EXPECT_EQ(begin, at);
      at = end;
    }
    EXPECT_EQ(at, end_block * layout_.stride_bytes());
  }

  static constexpr uint32_t kNumBlocks = 16;
  KvLayout layout_;
  std::unique_ptr<HeldTransfers> transfers_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Senders> senders_;
  uint64_t tick_ = 0;
};

TEST_F(SendersTest, AStoppedSenderFencesWritesThatAreDoneHere) {
  make(kSmall, 70, 32);
  step();
  grant(3, 0);
  ASSERT_EQ(transfers_->all<WriteSpans>().size(), 1u);
  done(1);  // the first block's write is done here, the prompt is not
  EXPECT_FALSE(senders_->settle(kId).has_value());
  senders_->stop(kId);
  EXPECT_FALSE(senders_->settle(kId).has_value()) << "the write may still be on its way";
  scheduler_->finish(kSequence);
  EXPECT_GT(scheduler_->pool().num_owned(), 0u);
  ASSERT_EQ(transfers_->all<Fence>().size(), 1u);
  done(2);
  EXPECT_TRUE(stopped());
  senders_->finish(kId);
  EXPECT_EQ(scheduler_->pool().num_owned(), 0u);
  scheduler_->check();
}

// The step that computes the last chunk may end after its sequence, given up while writes were in
// flight, was released.
TEST_F(SendersTest, AStoppedSenderAsksNothingOfItsReleasedSequence) {
  make(kSmall, 70, 32);
  step();
  grant(3, 0);
  senders_->stop(kId);
  scheduler_->finish(kSequence);
  senders_->post_rest(kId, {.first_token = 7});
  EXPECT_EQ(transfers_->all<WriteSpans>().size(), 1u);
  EXPECT_EQ(transfers_->all<Fence>().size(), 1u);
}

TEST_F(SendersTest, AChunkGoesOutInGroupsOfLayersAsTheyFinish) {
  make(kLarge, 4 * 32, 1024);
  ASSERT_FALSE(scheduler_->plan(++tick_).empty());
  grant(4, 0);
  for (uint32_t layer = 1; layer <= 16; ++layer) {
    senders_->post_layers(kId, 4, layer);
    EXPECT_EQ(transfers_->all<WriteSpans>().size(), layer) << "a group is one layer of 4 blocks";
  }
  const TokenResult result{.token = 7, .finished = true};
  scheduler_->step_done({&result, 1}, tick_);
  senders_->post_rest(kId, {.first_token = 7});
  EXPECT_EQ(transfers_->all<WriteSpans>().size(), 16u);
  EXPECT_EQ(transfers_->all<Fence>().size(), 1u);
  expect_every_byte_once(0, 4);
}

// 32 + n writes and one for a late grant, whatever the chunks.
TEST_F(SendersTest, TheNumberOfWritesIsBounded) {
  for (const uint32_t budget : {32u, 64u, 96u, 160u, 512u}) {
    for (const uint32_t grant_at : {0u, 1u, 2u}) {
      make(kLarge, 10 * 32 + 5, budget);
      ASSERT_FALSE(HasFatalFailure());
      uint32_t num_chunks = 0;
      do {
        if (num_chunks == grant_at) grant(11, 0);
      } while (step() && ++num_chunks > 0);
      if (num_chunks < grant_at) grant(11, 0);
      EXPECT_EQ(num_chunks, (10 * 32 + 5 + budget - 1) / budget);
      EXPECT_LE(transfers_->all<WriteSpans>().size(), 32 + num_chunks + 1) << budget;
      EXPECT_EQ(transfers_->all<Fence>().size(), 1u);
      expect_every_byte_once(0, 11);
      for (const auto& write : transfers_->all<WriteSpans>()) EXPECT_EQ(write.stream, 1u);
      scheduler_->finish(kSequence);
      senders_->finish(kId);
    }
  }
}

TEST_F(SendersTest, BlocksSideBySideAreOneOperation) {
  make(kSmall, 6 * 32, 1024);
  step();
  grant(6, 0);
  const auto writes = transfers_->all<WriteSpans>();
  ASSERT_EQ(writes.size(), 1u);
  EXPECT_EQ(writes[0].spans.size(), 6u);
  EXPECT_EQ(merge_spans(writes[0].spans).size(), 1u);
}

// ---- reads --------------------------------------------------------------------------------------

TEST_F(SendersTest, WhatThePeerHoldsIsReadAndTheRestComputed) {
  make(kSmall, 200, 1024, true);
  EXPECT_FALSE(step()) << "it waits for its grant";
  grant(7, 5);
  const auto reads = transfers_->all<ReadSpans>();
  ASSERT_EQ(reads.size(), 1u);
  ASSERT_EQ(reads[0].spans.size(), 5u);
  for (uint32_t b = 0; b < 5; ++b) {
    const CopySpan& span = reads[0].spans[b];
    EXPECT_EQ(span.local_offset, scheduler_->block_table(kSequence)[b] * layout_.stride_bytes());
    EXPECT_EQ(span.remote_offset, (14 - 2 * b) * layout_.stride_bytes());
  }
  EXPECT_FALSE(step());
  EXPECT_EQ(scheduler_->tree().num_blocks(), 0u) << "nothing has arrived";
  done(reads[0].operation, {}, 5 * layout_.stride_bytes(), 1000);
  EXPECT_EQ(scheduler_->tree().num_blocks(), 5u);
  EXPECT_EQ(num_computed(), 160u);
  EXPECT_TRUE(step());
  expect_every_byte_once(5, 7);
  EXPECT_EQ(senders_->ledger().traffic(kPair).num_blocks_read, 5u);
  EXPECT_EQ(senders_->ledger().total().bytes_read, 5 * layout_.stride_bytes());
}

TEST_F(SendersTest, AGrantBetweenChunksIsLookedAtThen) {
  make(kSmall, 200, 64);
  step();
  grant(7, 5);
  ASSERT_EQ(transfers_->all<ReadSpans>().size(), 1u);
  EXPECT_EQ(transfers_->all<ReadSpans>()[0].spans.size(), 3u) << "two were computed";
  EXPECT_FALSE(step());
}

TEST_F(SendersTest, AGrantWithinAStepIsLookedAtBehindIt) {
  make(kSmall, 200, 64);
  ASSERT_FALSE(scheduler_->plan(++tick_).empty());
  grant(7, 5);
  EXPECT_TRUE(transfers_->all<ReadSpans>().empty());
  scheduler_->step_done({}, tick_);
  senders_->post_complete(kId, tick_);
  ASSERT_EQ(transfers_->all<ReadSpans>().size(), 1u);
  EXPECT_EQ(transfers_->all<ReadSpans>()[0].spans.size(), 3u);
}

TEST_F(SendersTest, AFailedReadIsRecomputedAndTheHandoffGoesOn) {
  make(kSmall, 100, 1024, true);
  step();
  grant(4, 3);
  const OperationId read = transfers_->all<ReadSpans>().at(0).operation;
  done(read, {StatusCode::kUnavailable, "the test says so"});
  EXPECT_FALSE(senders_->settle(kId).has_value());
  EXPECT_EQ(num_computed(), 0u);
  EXPECT_TRUE(step());
  EXPECT_EQ(transfers_->all<ReadSpans>().size(), 1u) << "it is not tried again";
  EXPECT_EQ(senders_->ledger().total().num_reads_failed, 1u);
  EXPECT_EQ(transfers_->all<Fence>().size(), 1u);
}

TEST_F(SendersTest, AStoppedReadKeepsItsBlocksUntilItHasEnded) {
  make(kSmall, 100, 1024, true);
  step();
  grant(4, 3);
  senders_->stop(kId);
  scheduler_->finish(kSequence);
  scheduler_->check();
  EXPECT_EQ(scheduler_->pool().num_owned(), 4u) << "the read may still land";
  EXPECT_FALSE(senders_->settle(kId).has_value()) << "the peer's blocks may still be read";
  done(transfers_->all<ReadSpans>().at(0).operation);
  EXPECT_TRUE(stopped());
  EXPECT_TRUE(transfers_->all<Fence>().empty()) << "nothing was written";
  senders_->finish(kId);
  EXPECT_EQ(scheduler_->pool().num_owned(), 0u);
  EXPECT_EQ(scheduler_->tree().num_blocks(), 0u);
  scheduler_->check();
}

TEST_F(SendersTest, TheWaitForAGrantIsBounded) {
  make(kSmall, 100, 1024, true);
  EXPECT_EQ(senders_->next_tick(), UINT64_MAX);
  EXPECT_FALSE(step());
  const uint64_t deadline = senders_->next_tick();
  ASSERT_LT(deadline, tick_ + 1'000'000);
  senders_->expire(deadline - 1);
  EXPECT_FALSE(step());
  senders_->expire(deadline);
  EXPECT_EQ(senders_->next_tick(), UINT64_MAX);
  EXPECT_TRUE(step());
}

TEST_F(SendersTest, TheBlockOfTheLastTokenIsComputedWhateverAGrantSays) {
  make(kSmall, 128, 1024, true);
  step();
  grant(4, 4);
  ASSERT_EQ(transfers_->all<ReadSpans>().size(), 1u);
  EXPECT_EQ(transfers_->all<ReadSpans>()[0].spans.size(), 3u);
  done(transfers_->all<ReadSpans>()[0].operation);
  EXPECT_TRUE(step());
  EXPECT_TRUE(transfers_->all<WriteSpans>().empty());
  EXPECT_EQ(transfers_->all<Fence>().size(), 1u);
}

TEST_F(SendersTest, AGrantWithoutHistoryEndsTheWait) {
  make(kSmall, 100, 1024, true);
  step();
  grant(4, 0);
  EXPECT_TRUE(transfers_->posted.empty());
  EXPECT_TRUE(step());
}

TEST_F(SendersTest, BlocksThatMeanOtherBytesAreNotRead) {
  make(kSmall, 100, 1024, true, false);
  step();
  grant(4, 3);
  EXPECT_TRUE(transfers_->all<ReadSpans>().empty());
  EXPECT_TRUE(step());
}

TEST_F(SendersTest, ASlowPeerIsNotRead) {
  make(kSmall, 300, 64);
  step(100);                                                     // 64 tokens in 100 us
  senders_->ledger().speed(kPair).observe(1000, 1'000'000'000);  // a millisecond a byte
  grant(10, 8);
  EXPECT_TRUE(transfers_->all<ReadSpans>().empty());
  EXPECT_TRUE(step(100));
  EXPECT_EQ(senders_->ledger().total().num_reads_declined, 1u);
}

TEST_F(SendersTest, OnlyAContinuationOfWhatWasHandedOffWaits) {
  make(kSmall, 100, 1024);
  const Senders::Target target{kPair, layout_, true};
  std::vector<int32_t> longer(200);
  for (uint32_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<int32_t>(i);
  std::vector<BlockHash> chain;
  extend_chain({}, longer, UINT32_MAX, chain);
  EXPECT_FALSE(senders_->may_read(target, chain));
  step();
  grant(4, 0);
  EXPECT_TRUE(senders_->may_read(target, chain)) << "the peer decodes on from block 3";
  EXPECT_FALSE(senders_->may_read({kPair, layout_, false}, chain));
  EXPECT_FALSE(senders_->may_read({kPair + 1, layout_, true}, chain));
  EXPECT_FALSE(senders_->may_read(target, std::span(chain).first(3))) << "all of it is here";
  senders_->ledger().forget(kPair);
  EXPECT_FALSE(senders_->may_read(target, chain));
}

TEST(ReadingPays, ComparesTheTimesOfBoth) {
  EXPECT_TRUE(reading_pays(0, 0)) << "nothing is known: try";
  EXPECT_TRUE(reading_pays(1e9, 0));
  EXPECT_TRUE(reading_pays(0, 1));
  EXPECT_TRUE(reading_pays(1'000'000, 1'000));
  EXPECT_FALSE(reading_pays(1'000'001, 1'000));
}

TEST(TransferSpeed, FollowsWhatWasMeasured) {
  TransferSpeed speed;
  EXPECT_EQ(speed.predicted_ns(1000), 0);
  speed.observe(0, 5);
  EXPECT_EQ(speed.predicted_ns(1000), 0) << "a fence tells nothing";
  speed.observe(1000, 2000);
  EXPECT_DOUBLE_EQ(speed.predicted_ns(500), 1000);
  for (int i = 0; i < 50; ++i) speed.observe(1000, 8000);
  EXPECT_NEAR(speed.predicted_ns(1000), 8000, 1);
}

}  // namespace
}  // namespace crossdock
