// The links below DataPath by themselves: verbs' way of doing things over the nearest thing to it
// that every machine has, and frames that break the rules.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>

#include "../../src/transfer/data_link.h"
#include "../../src/transfer/frame_link.h"
#include "../../src/transfer/ucx_worker.h"

namespace crossdock {
namespace {

constexpr size_t kBytes = 8u << 20;

class Finished : public PieceSink {
 public:
  void on_piece(uint64_t token, ucs_status_t status) override { statuses[token] = status; }
  std::map<uint64_t, ucs_status_t> statuses;
};

// Two workers of one process that share memory.
class RdmaLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Node* node : {&here_, &there_}) {
      auto worker = UcxWorker::create(UCP_FEATURE_RMA, {{"TLS", "posix,self"}});
      ASSERT_TRUE(worker.ok()) << worker.status().to_string();
      node->worker = std::move(worker).value();
      auto memory = UcxMemory::allocate(*node->worker, kBytes, true);
      ASSERT_TRUE(memory.ok()) << memory.status().to_string();
      node->memory = std::move(memory).value();
    }
    const auto address = there_.worker->address();
    const auto key = there_.memory->remote_key();
    ASSERT_TRUE(address.ok() && key.ok());
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.value().data());
    ASSERT_EQ(ucp_ep_create(here_.worker->worker(), &params, &endpoint_), UCS_OK);
    ASSERT_EQ(ucp_ep_rkey_unpack(endpoint_, key.value().data(), &key_), UCS_OK);
    link_ = std::make_unique<RdmaLink>(
        RdmaLink::Target{endpoint_, key_, here_.memory->handle(), here_.memory->data(),
                         reinterpret_cast<uint64_t>(there_.memory->data())},
        finished_);
  }
  void TearDown() override {
    if (key_ != nullptr) ucp_rkey_destroy(key_);
    if (endpoint_ == nullptr) return;
    ucp_request_param_t param{};
    void* request = ucp_ep_close_nbx(endpoint_, &param);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
  bool finish(uint64_t token) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!finished_.statuses.contains(token)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      here_.worker->progress();
      there_.worker->progress();
      link_->pump();
    }
    return link_->quiet();
  }

  struct Node {
    std::unique_ptr<UcxWorker> worker;
    std::unique_ptr<UcxMemory> memory;
  };
  Node here_;
  Node there_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  Finished finished_;
  std::unique_ptr<RdmaLink> link_;
};

TEST_F(RdmaLinkTest, PutsGetsAndFences) {
  for (size_t i = 0; i < kBytes; ++i) here_.memory->data()[i] = std::byte((i * 7) & 0xff);
  link_->put(std::vector<CopySpan>{{0, 4096, 3u << 20}}, 1, true);
  link_->fence(2);
  ASSERT_TRUE(finish(2));
  ASSERT_TRUE(finish(1));
  EXPECT_EQ(finished_.statuses[1], UCS_OK);
  EXPECT_EQ(finished_.statuses[2], UCS_OK);
  EXPECT_EQ(std::memcmp(here_.memory->data(), there_.memory->data() + 4096, 3u << 20), 0);
  link_->get({5u << 20, 4096, 1u << 20}, 3);
  ASSERT_TRUE(finish(3));
  EXPECT_EQ(finished_.statuses[3], UCS_OK);
  EXPECT_EQ(std::memcmp(here_.memory->data() + (5u << 20), here_.memory->data(), 1u << 20), 0);
}

TEST_F(RdmaLinkTest, AFenceIsNotDoneBeforeItsByteWasReadBack) {
  link_->fence(1);
  EXPECT_FALSE(finished_.statuses.contains(1));
  EXPECT_TRUE(link_->can_pump());
  ASSERT_TRUE(finish(1));
}

TEST_F(RdmaLinkTest, CloseCancelsAFenceWhoseByteIsNotRead) {
  link_->fence(1);
  link_->close();
  EXPECT_EQ(finished_.statuses.at(1), UCS_ERR_CANCELED);
  EXPECT_FALSE(link_->can_pump());
}

// What a peer may send without being trusted: nothing is sent back here, so no endpoint is needed.
class FrameLinkTest : public ::testing::Test {
 protected:
  FrameLinkTest() : segment_(1'000), link_(nullptr, 1, 2, segment_, finished_) {}
  bool arrive(FrameKind kind, uint64_t offset, size_t body_bytes, uint64_t count_bytes = 0) {
    FrameHead head;
    head.header.kind = kind;
    head.header.offset = offset;
    head.header.request = 77;
    head.header.count_bytes = count_bytes;
    return link_.on_frame(head, body(body_bytes));
  }
  bool arrive_write(std::vector<FrameSpan> spans, size_t body_bytes) {
    FrameHead head;
    head.header.kind = FrameKind::kWrite;
    head.num_spans = static_cast<uint32_t>(spans.size());
    std::copy(spans.begin(), spans.end(), head.spans);
    return link_.on_frame(head, body(body_bytes));
  }
  static std::vector<std::byte> body(size_t bytes) { return {bytes, std::byte{0xab}}; }
  std::vector<std::byte> segment_;
  Finished finished_;
  FrameLink link_;
};

TEST_F(FrameLinkTest, AWriteStaysInTheSegment) {
  EXPECT_TRUE(arrive_write({{990, 10}}, 10));
  EXPECT_EQ(segment_[999], std::byte{0xab});
  EXPECT_EQ(segment_[989], std::byte{0});
  EXPECT_FALSE(arrive_write({{991, 10}}, 10));
  EXPECT_FALSE(arrive_write({{UINT64_MAX, 2}}, 2));
  EXPECT_FALSE(arrive_write({{0, 1'001}}, 1'001));
}

TEST_F(FrameLinkTest, EverySpanOfAWriteIsPutInItsPlace) {
  EXPECT_TRUE(arrive_write({{100, 3}, {500, 1}, {10, 4}}, 8));
  for (size_t i = 0; i < segment_.size(); ++i) {
    const bool written = (i >= 100 && i < 103) || i == 500 || (i >= 10 && i < 14);
    ASSERT_EQ(segment_[i], std::byte{static_cast<uint8_t>(written ? 0xab : 0)}) << i;
  }
}

// Also of the spans before the one that is wrong.
TEST_F(FrameLinkTest, OfAWriteWhoseSpansAreWrongNothingLands) {
  EXPECT_FALSE(arrive_write({{0, 4}, {998, 4}}, 8));
  EXPECT_FALSE(arrive_write({{0, 4}, {8, 4}}, 7));
  EXPECT_FALSE(arrive_write({{0, 4}, {8, 4}}, 9));
  EXPECT_FALSE(arrive_write({{0, 4}, {8, 0}}, 4));
  EXPECT_FALSE(arrive_write({{0, 4}, {8, UINT64_MAX}}, 8));
  EXPECT_FALSE(arrive_write({}, 0));
  EXPECT_FALSE(arrive_write({}, 4));
  EXPECT_EQ(segment_, std::vector<std::byte>(segment_.size()));
}

TEST_F(FrameLinkTest, OnlyWritesHaveSpans) {
  FrameHead head;
  head.header.kind = FrameKind::kFence;
  head.num_spans = 1;
  EXPECT_FALSE(link_.on_frame(head, {}));
}

TEST(FrameHead, IsReadAsItWasSent) {
  FrameHead sent;
  sent.header.magic = kFrameMagic;
  sent.header.request = 7;
  for (uint32_t i = 0; i < kFrameSpansMax; ++i) sent.spans[i] = {i, i + 1};
  for (sent.num_spans = 0; sent.num_spans <= kFrameSpansMax; ++sent.num_spans) {
    FrameHead read;
    ASSERT_TRUE(read.read(&sent, sent.wire_bytes()));
    EXPECT_EQ(read.header.request, 7u);
    ASSERT_EQ(read.num_spans, sent.num_spans);
    EXPECT_EQ(std::memcmp(read.spans, sent.spans, sent.num_spans * sizeof(FrameSpan)), 0);
  }
}

TEST(FrameHead, RefusesOtherSizesAndOtherMagic) {
  FrameHead sent;
  sent.header.magic = kFrameMagic;
  FrameHead read;
  EXPECT_FALSE(read.read(&sent, 0));
  EXPECT_FALSE(read.read(&sent, sizeof(FrameHeader) - 1));
  EXPECT_FALSE(read.read(&sent, sizeof(FrameHeader) + 8));
  EXPECT_FALSE(read.read(&sent, sizeof(FrameHeader) + sizeof sent.spans + sizeof(FrameSpan)));
  sent.header.magic = 1;
  EXPECT_FALSE(read.read(&sent, sizeof(FrameHeader)));
}

TEST_F(FrameLinkTest, AReadStaysInTheSegment) {
  EXPECT_FALSE(arrive(FrameKind::kRead, 0, 0, 1'001));
  EXPECT_FALSE(arrive(FrameKind::kRead, UINT64_MAX, 0, 2));
  EXPECT_FALSE(arrive(FrameKind::kRead, 0, 0, 0));
  EXPECT_FALSE(link_.can_pump());
}

TEST_F(FrameLinkTest, AnAnswerThatWasNotAskedForIsRefused) {
  EXPECT_FALSE(arrive(FrameKind::kAck, 0, 0));
  EXPECT_FALSE(arrive(FrameKind::kReadBytes, 0, 4));
}

TEST_F(FrameLinkTest, AFenceWaitsForItsBytes) {
  EXPECT_TRUE(arrive(FrameKind::kFence, 0, 0, 20));
  EXPECT_FALSE(link_.can_pump());
  EXPECT_TRUE(arrive_write({{0, 10}}, 10));
  EXPECT_FALSE(link_.can_pump());
  EXPECT_TRUE(arrive_write({{0, 10}}, 10));
  EXPECT_TRUE(link_.can_pump());
}

TEST_F(FrameLinkTest, AfterCloseNothingLands) {
  link_.close();
  EXPECT_TRUE(arrive_write({{0, 10}}, 10));
  EXPECT_EQ(segment_[0], std::byte{0});
}

}  // namespace
}  // namespace crossdock
