// Which blocks a store is offered, and when again.
#include "crossdock/engine/store_traffic.h"

#include <gtest/gtest.h>

namespace crossdock {
namespace {

constexpr KvLayout kLayout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
constexpr SequenceId kSequence = 5;
constexpr SequenceId kLater = 6;
constexpr PeerId kStore = 3;

class KeptTransfers : public Transfers {
 public:
  std::span<std::byte> segment() override { return memory_; }
  const EndpointDescriptor& descriptor() const override { return descriptor_; }
  void submit(Operation operation) override { posted.push_back(std::move(operation)); }
  bool drain(std::vector<TransferEvent>&) override { return false; }
  int event_fd() const override { return -1; }

  std::vector<Operation> posted;

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(4 * kLayout.stride_bytes());
  EndpointDescriptor descriptor_;
};

class StoreTrafficTest : public ::testing::Test {
 protected:
  // A prompt of two whole blocks, computed.
  void SetUp() override {
    submit(kSequence, false);
    ASSERT_FALSE(scheduler_.plan(1).empty());
  }
  void submit(SequenceId id, bool awaits_load) {
    Submission submission{.id = id, .role = SequenceRole::kSource, .max_new_tokens = 1};
    submission.prompt.assign(2 * kBlockTokens, 1);
    submission.awaits_load = awaits_load;
    ASSERT_TRUE(scheduler_.submit(std::move(submission)).ok());
  }
  // Another sequence with the same prompt asks the store, which names this many of its blocks.
  void look_up(PeerId peer, size_t num_blocks) {
    submit(kLater, true);
    const auto chain = scheduler_.chain(kSequence);
    traffic_.look_up(kLater, chain, 3);
    link::StoreFound found{.sequence_id = kLater, .peer_id = peer, .lease_id = num_blocks};
    for (const BlockHash& hash : chain.first(num_blocks)) {
      found.blocks.push_back({.hash_low = hash.low, .hash_high = hash.high});
    }
    traffic_.found(found);
  }
  // What the store is asked about; 0: nothing.
  size_t offer() {
    events_.clear();
    traffic_.offer(scheduler_.chain(kSequence), scheduler_.block_table(kSequence).first(2), 1);
    if (events_.empty()) return 0;
    const auto& message = std::get<link::StoreOffer>(events_.at(0));
    offer_id_ = message.offer_id;
    return message.hashes.size() / 2;
  }
  void answer(PeerId peer) { traffic_.places({.offer_id = offer_id_, .peer_id = peer}, 2); }

  Scheduler scheduler_{
      SchedulerConfig{.num_blocks = 4, .token_budget = 128, .context_tokens_max = 1024}};
  KeptTransfers transfers_;
  std::vector<link::Event> events_;
  StoreTraffic traffic_{kLayout, scheduler_, transfers_,
                        [this](const link::Event& event) { events_.push_back(event); }};
  uint64_t offer_id_ = 0;
};

TEST_F(StoreTrafficTest, WhatAStoreHasIsNotOfferedAgain) {
  EXPECT_EQ(offer(), 2u);
  answer(kStore);
  EXPECT_EQ(offer(), 0u);
}

TEST_F(StoreTrafficTest, WhatNoStoreWasAskedAboutIsOfferedAgain) {
  EXPECT_EQ(offer(), 2u);
  answer(0);
  EXPECT_EQ(offer(), 2u);
}

TEST_F(StoreTrafficTest, WhatWasNotAnsweredInTimeIsOfferedAgain) {
  EXPECT_EQ(offer(), 2u);
  EXPECT_TRUE(traffic_.expire(traffic_.next_tick()).empty());
  EXPECT_EQ(offer(), 2u);
}

TEST_F(StoreTrafficTest, AnotherStoreIsOfferedEverything) {
  EXPECT_EQ(offer(), 2u);
  answer(kStore);
  traffic_.store_connected();
  EXPECT_EQ(offer(), 2u);
}

TEST_F(StoreTrafficTest, WhatAStoreNoLongerHasIsOfferedAgain) {
  EXPECT_EQ(offer(), 2u);
  answer(kStore);
  look_up(kStore, 1);
  EXPECT_EQ(offer(), 1u);
}

TEST_F(StoreTrafficTest, WhatNoStoreWasAskedForIsNotOfferedAgain) {
  EXPECT_EQ(offer(), 2u);
  answer(kStore);
  look_up(0, 0);
  EXPECT_EQ(offer(), 0u);
}

TEST_F(StoreTrafficTest, WhatAStoreHadWronglyIsOfferedAgain) {
  EXPECT_EQ(offer(), 2u);
  answer(kStore);
  look_up(kStore, 1);
  ASSERT_EQ(offer(), 1u);  // the other block
  answer(kStore);
  const StepPlan& plan = scheduler_.plan(4);
  ASSERT_EQ(plan.loads.size(), 1u);
  traffic_.load(plan.loads[0], 4);
  const auto& read = std::get<ReadSpans>(transfers_.posted.at(0));
  EXPECT_EQ(traffic_.on_done({.operation = read.operation}, 5), kStore);
  ASSERT_EQ(traffic_.num_blocks_bad(), 1u);
  EXPECT_EQ(offer(), 1u);
}

}  // namespace
}  // namespace crossdock
