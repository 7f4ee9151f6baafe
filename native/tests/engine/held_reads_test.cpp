// A prefill engine that is in the middle of reading what its decode peer holds, when one of them
// gives the handoff up or ends.
#include <algorithm>
#include <mutex>
#include <optional>

#include "engine_host.h"

namespace crossdock::testing {
namespace {

constexpr uint64_t kPrefillEpoch = 101;
constexpr uint64_t kDecodeEpoch = 202;
constexpr uint32_t kDecodeBlocks = 24;

// Where the test holds reads: half done, until it lets them go on.
class ReadGate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  // The read that is in the middle; its spans are those of the whole.
  std::optional<ReadSpans> held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  void set_held(std::optional<ReadSpans> held) {
    const std::lock_guard lock(mutex_);
    held_ = std::move(held);
  }

 private:
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::optional<ReadSpans> held_;
};

// Driven by the transfer thread, as every transport; the gate alone is the test's too. As the real
// ones do, it ends what is outstanding before it says that the peer is broken or closed.
class HeldTransport final : public Transport {
 public:
  HeldTransport(std::unique_ptr<Transport> inner, ReadGate& gate)
      : inner_(std::move(inner)), gate_(gate) {}

  std::span<std::byte> segment() override { return inner_->segment(); }
  const EndpointDescriptor& descriptor() const override { return inner_->descriptor(); }
  int wake_fd() const override { return inner_->wake_fd(); }
  bool arm() override { return inner_->arm(); }

  Status post(Operation operation) override {
    const auto* read = std::get_if<ReadSpans>(&operation);
    if (read != nullptr && gate_.closed() && read->spans.size() > 1) return hold(*read);
    if (const auto* disconnect = std::get_if<Disconnect>(&operation)) cancel(disconnect->peer);
    return inner_->post(std::move(operation));
  }

  bool poll(std::vector<TransferEvent>& events) override {
    const size_t num_before = events.size();
    inner_->poll(events);
    for (size_t i = num_before; i < events.size(); ++i) {
      if (const auto* broken = std::get_if<PeerBroken>(&events[i])) cancel(broken->peer);
    }
    // That of a first half is no read's end.
    std::erase_if(events, [this](const TransferEvent& event) {
      const auto* done = std::get_if<OperationDone>(&event);
      return done != nullptr && rest_.has_value() && done->operation == rest_->operation;
    });
    events.insert(events.begin() + ptrdiff_t(num_before), ended_.begin(), ended_.end());
    ended_.clear();
    if (rest_.has_value() && !gate_.closed()) {
      const ReadSpans rest = *std::exchange(rest_, std::nullopt);
      const Status posted = inner_->post(rest);
      if (!posted.ok()) events.emplace_back(OperationDone{rest.operation, posted});
      gate_.set_held(std::nullopt);
    }
    return events.size() != num_before;
  }

 private:
  Status hold(const ReadSpans& read) {
    ReadSpans first = read;
    rest_ = read;
    first.spans.resize(read.spans.size() / 2);
    rest_->spans.erase(rest_->spans.begin(), rest_->spans.begin() + ptrdiff_t(first.spans.size()));
    const Status posted = inner_->post(std::move(first));
    if (posted.ok()) {
      gate_.set_held(read);
    } else {
      rest_.reset();
    }
    return posted;
  }

  void cancel(PeerId peer) {
    if (!rest_.has_value() || rest_->peer != peer) return;
    ended_.emplace_back(
        OperationDone{rest_->operation, {StatusCode::kUnavailable, "the peer's connection broke"}});
    rest_.reset();
    gate_.set_held(std::nullopt);
  }

  std::unique_ptr<Transport> inner_;
  ReadGate& gate_;
  std::optional<ReadSpans> rest_;     // of the read that is held
  std::vector<TransferEvent> ended_;  // with the peer
};

class HeldReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TinyDecoder::random(tiny_config(), "F32", 1).write(directory_.path());
    const auto wrap = [this](std::unique_ptr<Transport> inner) {
      return std::make_unique<HeldTransport>(std::move(inner), gate_);
    };
    // A read is always tried, and the decode engine's patience with it never ends.
    prefill_ = std::make_unique<EngineHost>(hub_, directory_.path(), kPrefillEpoch, 64,
                                            HostOptions{.time_stands_still = true, .wrap = wrap});
    decode_ = std::make_unique<EngineHost>(
        hub_, directory_.path(), kDecodeEpoch, kDecodeBlocks,
        HostOptions{.time_stands_still = true, .wrap = [this](std::unique_ptr<Transport> inner) {
                      decode_segment_ = inner->segment();
                      return inner;
                    }});
    connect(*prefill_, *decode_, 1, 77);
    read_half();
  }

  // Of a second turn, whose first was generated on the decode engine.
  void read_half() {
    gate_.close();
    constexpr uint64_t kFirst = 1000;
    turn_ = random_tokens(100, decode_->ready().vocab_size, 0);
    start_handoff(*prefill_, *decode_, kFirst, turn_, 70);
    decode_->wait([&] { return decode_->outcome(kFirst).over(); });
    prefill_->wait([&] { return prefill_->outcome(kFirst).over(); });
    const auto& generated = decode_->outcome(kFirst).tokens;
    turn_.insert(turn_.end(), generated.begin(), generated.end());
    turn_.resize(turn_.size() + 40, 5);
    handoff_ = kFirst + 1;
    start_handoff(*prefill_, *decode_, handoff_, turn_, 4);
    prefill_->wait([this] {
      prefill_->report();
      return gate_.held().has_value() || prefill_->outcome(handoff_).over();
    });
    ASSERT_TRUE(gate_.held().has_value());
    read_ = *gate_.held();
    ASSERT_EQ(read_.spans.size(), 2u) << "the two blocks that were generated";
    before_ = bytes();
  }

  // What the read has yet to take, as it is now.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const CopySpan& span : read_.spans) {
      const auto part = decode_segment_.subspan(span.remote_offset, span.length_bytes);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // Requests that together need more blocks than the decode engine has, none of them twice.
  void fill_decode(uint64_t first_id) {
    for (uint64_t id = first_id; id < first_id + kDecodeBlocks; ++id) {
      const auto tokens = random_tokens(90, decode_->ready().vocab_size, id);
      decode_->send(link::Generate{task(id, tokens, 8)});
    }
    for (uint64_t id = first_id; id < first_id + kDecodeBlocks; ++id) {
      decode_->wait([&] { return decode_->outcome(id).over(); });
      EXPECT_EQ(decode_->outcome(id).finish, link::Finish::kLength);
    }
  }

  // It gives what an engine gives that has met nobody.
  void expect_well(EngineHost& host) {
    host.wait_until_clean();
    EngineHost fresh(hub_, directory_.path(), 303, 64);
    for (EngineHost* each : {&host, &fresh}) {
      each->send(link::Generate{task(900, turn_, 12)});
      each->wait([&] { return each->outcome(900).over(); });
    }
    EXPECT_EQ(host.outcome(900).tokens, fresh.outcome(900).tokens);
    EXPECT_EQ(host.outcome(900).digests, fresh.outcome(900).digests);
    host.wait_until_clean();
  }

  TemporaryDirectory directory_;
  LoopbackHub hub_;
  ReadGate gate_;
  std::span<const std::byte> decode_segment_;
  std::unique_ptr<EngineHost> prefill_;
  std::unique_ptr<EngineHost> decode_;
  uint64_t handoff_ = 0;
  std::vector<int32_t> turn_;
  ReadSpans read_;
  std::vector<std::byte> before_;
};

TEST_F(HeldReadsTest, BlocksOfAGivenUpHandoffAreNotReusedWhileTheyAreRead) {
  decode_->send(link::Cancel{handoff_});
  decode_->wait([this] { return decode_->outcome(handoff_).over(); });
  fill_decode(2000);
  EXPECT_EQ(bytes(), before_) << "a block was reused while its peer reads it";
  EXPECT_GT(decode_->report().num_quarantined, 0u) << "the targets wait for `aborted`, too";
  EXPECT_FALSE(prefill_->outcome(handoff_).over());
  EXPECT_TRUE(gate_.held().has_value());
  gate_.open();
  prefill_->wait([this] { return prefill_->outcome(handoff_).over(); });
  EXPECT_TRUE(prefill_->outcome(handoff_).ended);
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
  fill_decode(3000);
  EXPECT_NE(bytes(), before_) << "they are in use again";
  expect_well(*decode_);
  expect_well(*prefill_);
}

TEST_F(HeldReadsTest, APrefillThatEndsWhileItReadsLeavesItsPeerWhole) {
  prefill_.reset();
  decode_->wait([this] { return decode_->outcome(handoff_).over(); });
  EXPECT_EQ(decode_->outcome(handoff_).code, StatusCode::kUnavailable);
  decode_->wait_until_clean();
  fill_decode(2000);
  EXPECT_NE(bytes(), before_) << "they are in use again";
  expect_well(*decode_);
}

TEST_F(HeldReadsTest, ADecodeThatEndsWhileItIsReadLeavesItsPeerWhole) {
  decode_.reset();
  prefill_->wait([this] { return prefill_->outcome(handoff_).over(); });
  EXPECT_EQ(prefill_->outcome(handoff_).code, StatusCode::kUnavailable);
  EXPECT_EQ(prefill_->counter("pairs_reads_failed"), 1u);
  expect_well(*prefill_);
}

TEST_F(HeldReadsTest, APairThatBreaksWhileItReadsLeavesBothWhole) {
  decode_->send(link::DisconnectPeer{1});
  for (EngineHost* host : {prefill_.get(), decode_.get()}) {
    host->wait([&] { return host->outcome(handoff_).over() && host->peer_closed(1); });
    EXPECT_EQ(host->outcome(handoff_).code, StatusCode::kUnavailable);
  }
  fill_decode(2000);
  EXPECT_NE(bytes(), before_) << "they are in use again";
  expect_well(*decode_);
  expect_well(*prefill_);
}

}  // namespace
}  // namespace crossdock::testing
