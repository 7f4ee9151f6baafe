// Which blocks a store is offered, and when again.
#include "crossdock/engine/store_traffic.h"

#include <gtest/gtest.h>

namespace crossdock {
namespace {

constexpr KvLayout kLayout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
constexpr SequenceId kSequence = 5;
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
    std::vector<int32_t> prompt(2 * kBlockTokens, 1);
    ASSERT_TRUE(scheduler_
                    .submit({.id = kSequence,
                             .role = SequenceRole::kSource,
                             .prompt = std::move(prompt),
                             .max_new_tokens = 1})
                    .ok());
    ASSERT_FALSE(scheduler_.plan(1).empty());
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

}  // namespace
}  // namespace crossdock
