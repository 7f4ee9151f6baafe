// The order in which a sender may say that its writes are over.
#include "crossdock/engine/senders.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "crossdock/sys/shared_memory.h"
#include "crossdock/transfer/transfer_thread.h"

namespace crossdock {
namespace {

// Writes are done at once, as a transport says when it has taken them over. Fences are held back
// until the test lets them through.
class HeldTransport : public Transport {
 public:
  HeldTransport(size_t bytes, std::atomic<int>& fences_held, std::atomic<bool>& release)
      : memory_(bytes), wake_(EventFd::create().value()), held_(fences_held), release_(release) {}

  std::span<std::byte> segment() override { return memory_; }
  const EndpointDescriptor& descriptor() const override { return descriptor_; }
  Status post(Operation operation) override {
    if (const auto* write = std::get_if<WriteSpans>(&operation)) {
      done_.push_back({.operation = write->operation});
    } else if (const auto* fence = std::get_if<Fence>(&operation)) {
      fences_.push_back({.operation = fence->operation});
      ++held_;
    }
    return {};
  }
  bool poll(std::vector<TransferEvent>& events) override {
    if (release_) done_.insert(done_.end(), fences_.begin(), fences_.end()), fences_.clear();
    const bool any = !done_.empty();
    for (auto& event : done_) events.emplace_back(std::move(event));
    done_.clear();
    return any;
  }
  int wake_fd() const override { return wake_.fd(); }
  bool arm() override { return done_.empty(); }
  void wake() const { wake_.signal(); }

 private:
  std::vector<std::byte> memory_;
  EventFd wake_;
  EndpointDescriptor descriptor_;
  std::vector<OperationDone> done_;
  std::vector<OperationDone> fences_;
  std::atomic<int>& held_;
  std::atomic<bool>& release_;
};

TEST(Senders, AStoppedSenderFencesWritesThatAreDoneHere) {
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
  std::atomic<int> fences_held = 0;
  std::atomic<bool> release = false;
  auto transport = std::make_unique<HeldTransport>(
      8 * layout.stride_bytes() + Staging::bytes(layout), fences_held, release);
  const HeldTransport* held = transport.get();
  TransferThread transfer(std::move(transport));
  Scheduler scheduler({.num_blocks = 8, .token_budget = 32, .context_tokens_max = 1024});
  Senders senders(layout, scheduler, transfer, false);
  const HandoffId id{1, 2};
  const auto take = [&] {
    std::vector<TransferEvent> events;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!transfer.drain(events)) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      if (release) held->wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (auto& event : events) senders.on_done(std::get<OperationDone>(event));
  };

  ASSERT_TRUE(scheduler
                  .submit({.id = 5,
                           .role = SequenceRole::kSource,
                           .prompt = std::vector<int32_t>(70, 1),
                           .max_new_tokens = 1})
                  .ok());
  senders.prepare(id, 5, 1, layout);
  senders.grant({.id = id, .blocks = {0, 1, 2}});
  ASSERT_EQ(scheduler.plan(1).entries.size(), 1u);
  scheduler.step_done({}, 2);
  senders.post_complete(id);
  take();  // the first block's write is done here, the prompt is not
  EXPECT_FALSE(senders.settle(id).has_value());

  senders.stop(id);
  EXPECT_FALSE(senders.settle(id).has_value()) << "the write may still be on its way";
  scheduler.finish(5);
  EXPECT_GT(scheduler.pool().num_owned() + scheduler.pool().num_cached(), 0u);
  release = true;
  take();
  EXPECT_EQ(fences_held, 1);
  const auto event = senders.settle(id);
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(std::holds_alternative<handoff_event::WritesStopped>(*event));
  senders.finish(id);
  EXPECT_EQ(scheduler.pool().num_owned(), 0u);
  scheduler.check();
}

}  // namespace
}  // namespace crossdock
