// Pacing without time: what is posted when, over a link that finishes a piece when it is told to.
#include "../../src/transfer/data_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace crossdock {
namespace {

constexpr uint64_t kPieceBytes = 1000;
constexpr size_t kPieceSpans = 3;
constexpr uint64_t kInFlightBytes = 3500;

// The spans of a stream begin at its own offset, so that pieces tell where they come from.
constexpr uint64_t kStreamBytes = 1u << 20;

class HeldLink : public DataLink {
 public:
  struct Posted {
    uint64_t token = 0;
    std::vector<CopySpan> spans;
    bool fence = false;

    StreamId stream() const { return spans.front().local_offset / kStreamBytes; }
    uint64_t bytes() const {
      uint64_t sum = 0;
      for (const CopySpan& span : spans) sum += span.length_bytes;
      return sum;
    }
  };

  explicit HeldLink(PieceSink& sink) : sink_(sink) {}
  PieceMax piece_max() const override { return {kPieceBytes, kPieceSpans}; }
  void put(std::span<const CopySpan> spans, uint64_t token, bool) override {
    add({token, {spans.begin(), spans.end()}});
  }
  void get(const CopySpan& span, uint64_t token) override { add({token, {span}}); }
  void fence(uint64_t token) override { add({token, {}, true}); }
  bool pump() override { return false; }
  bool can_pump() const override { return false; }
  void close() override { finish_all(); }
  bool quiet() const override { return held_.empty(); }

  void finish_oldest() {
    const uint64_t token = held_.front().token;
    held_.erase(held_.begin());
    sink_.on_piece(token, UCS_OK);
  }
  void finish_all() {
    while (!held_.empty()) finish_oldest();
  }
  size_t num_held() const { return held_.size(); }

  std::vector<Posted> posted;  // everything, in order

 private:
  void add(const Posted& piece) {
    posted.push_back(piece);
    held_.push_back(piece);
  }
  PieceSink& sink_;
  std::vector<Posted> held_;
};

class DataPathTest : public ::testing::Test {
 protected:
  void SetUp() override { path_.open(link_); }

  void write(StreamId stream, uint64_t bytes) {
    path_.post_write({next_operation_++, 1, {{stream * kStreamBytes, 0, bytes}}, stream});
  }
  void fence(StreamId stream) { path_.post_fence({next_operation_++, 1, stream}); }
  void pump_all() {
    while (path_.pump() > 0) ASSERT_LE(path_.in_flight_bytes(), kInFlightBytes);
  }
  std::vector<StreamId> order() const {
    std::vector<StreamId> streams;
    for (const auto& piece : link_.posted) {
      streams.push_back(piece.stream());
    }
    return streams;
  }

  std::vector<TransferEvent> events_;
  DataPath path_{kInFlightBytes, events_};
  HeldLink link_{path_};
  OperationId next_operation_ = 1;
};

TEST_F(DataPathTest, BytesInFlightStayWithinTheBound) {
  write(1, 20 * kPieceBytes);
  pump_all();
  EXPECT_EQ(link_.num_held(), 3u);
  EXPECT_FALSE(path_.can_pump());
  while (link_.num_held() > 0) {
    link_.finish_oldest();
    pump_all();
  }
  EXPECT_EQ(link_.posted.size(), 20u);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(std::get<OperationDone>(events_[0]).bytes, 20 * kPieceBytes);
}

TEST_F(DataPathTest, APieceLargerThanTheBoundGoesAlone) {
  std::vector<TransferEvent> events;
  DataPath narrow(kPieceBytes / 2, events);
  HeldLink link(narrow);
  narrow.open(link);
  narrow.post_write({1, 1, {{0, 0, 3 * kPieceBytes}}});
  for (size_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(narrow.pump(), kPieceBytes);
    EXPECT_EQ(narrow.pump(), 0u);
    EXPECT_EQ(link.posted.size(), i);
    link.finish_oldest();
  }
  EXPECT_EQ(events.size(), 1u);
}

// Spans of 1 to 1,500 bytes with gaps between them.
std::vector<CopySpan> scattered(size_t num_spans) {
  std::mt19937 random(11);
  std::vector<CopySpan> spans;
  uint64_t offset = 0;
  for (size_t i = 0; i < num_spans; ++i) {
    const uint64_t length = 1 + random() % 1500;
    spans.push_back({offset, 2 * offset + 5, length});
    offset += length + 1 + random() % 100;
  }
  return spans;
}

TEST_F(DataPathTest, SpansOfAWriteShareAPieceAndEveryByteIsPostedOnce) {
  const auto spans = scattered(300);
  path_.post_write({1, 1, spans});
  while (path_.pump() > 0 || link_.num_held() > 0) link_.finish_all();
  std::map<uint64_t, uint64_t> remote_of;
  for (const auto& piece : link_.posted) {
    EXPECT_LE(piece.spans.size(), kPieceSpans);
    EXPECT_LE(piece.bytes(), kPieceBytes);
    for (const CopySpan& span : piece.spans) {
      for (uint64_t i = 0; i < span.length_bytes; ++i) {
        EXPECT_TRUE(remote_of.emplace(span.local_offset + i, span.remote_offset + i).second);
      }
    }
  }
  uint64_t bytes = 0;
  for (const CopySpan& span : spans) {
    bytes += span.length_bytes;
    for (uint64_t i = 0; i < span.length_bytes; ++i) {
      ASSERT_EQ(remote_of.at(span.local_offset + i), span.remote_offset + i);
    }
  }
  EXPECT_EQ(remote_of.size(), bytes);
  // Full to the brim but for those that have as many spans as a piece may have.
  for (size_t i = 0; i + 1 < link_.posted.size(); ++i) {
    const auto& piece = link_.posted[i];
    EXPECT_TRUE(piece.spans.size() == kPieceSpans || piece.bytes() == kPieceBytes) << i;
  }
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(std::get<OperationDone>(events_[0]).bytes, bytes);
}

TEST_F(DataPathTest, AReadHasOneSpanInAPiece) {
  const auto spans = scattered(50);
  path_.post_read({1, 1, spans});
  while (path_.pump() > 0 || link_.num_held() > 0) link_.finish_all();
  for (const auto& piece : link_.posted) EXPECT_EQ(piece.spans.size(), 1u);
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(DataPathTest, EveryStreamHasAPieceInEveryRound) {
  for (StreamId stream = 1; stream <= 4; ++stream) write(stream, 10 * kPieceBytes);
  for (size_t total = 0; total < 40;) {
    pump_all();
    total = link_.posted.size();
    if (total < 40) link_.finish_oldest();
  }
  const auto streams = order();
  for (size_t round = 0; round < 40; round += 4) {
    std::vector<StreamId> turn(streams.begin() + round, streams.begin() + round + 4);
    std::sort(turn.begin(), turn.end());
    EXPECT_EQ(turn, (std::vector<StreamId>{1, 2, 3, 4})) << round;
  }
}

TEST_F(DataPathTest, AShortStreamDoesNotWaitForALongOne) {
  write(1, 100 * kPieceBytes);
  pump_all();
  write(2, kPieceBytes);
  fence(2);
  for (int i = 0; i < 4; ++i) {
    link_.finish_oldest();
    pump_all();
  }
  const auto is_fence = [](const HeldLink::Posted& piece) { return piece.fence; };
  EXPECT_TRUE(std::any_of(link_.posted.begin(), link_.posted.end(), is_fence));
  EXPECT_LE(link_.posted.size(), 8u);
}

TEST_F(DataPathTest, AFenceComesAfterEveryPieceOfItsStream) {
  std::mt19937 random(7);
  std::map<StreamId, uint64_t> written;
  for (int round = 0; round < 200; ++round) {
    const StreamId stream = 1 + random() % 5;
    const uint64_t bytes = 1 + random() % (5 * kPieceBytes);
    written[stream] += bytes;
    write(stream, bytes);
    if (random() % 3 != 0) pump_all();
    if (link_.num_held() > 0 && random() % 2 == 0) link_.finish_oldest();
  }
  // One fence at the end of each stream, posted one by one: all of its bytes are out by then.
  for (StreamId stream = 1; stream <= 5; ++stream) {
    fence(stream);
    const auto is_fence = [](const HeldLink::Posted& piece) { return piece.fence; };
    while (std::count_if(link_.posted.begin(), link_.posted.end(), is_fence) <
           static_cast<ptrdiff_t>(stream)) {
      if (path_.pump() == 0) {
        ASSERT_GT(link_.num_held(), 0u);
        link_.finish_oldest();
      }
    }
    uint64_t bytes = 0;
    for (const auto& piece : link_.posted) {
      if (!piece.fence && piece.stream() == stream) bytes += piece.bytes();
    }
    EXPECT_EQ(bytes, written[stream]) << stream;
  }
}

TEST_F(DataPathTest, AStoppedPathEndsEveryOperationOnce) {
  for (StreamId stream = 1; stream <= 3; ++stream) {
    write(stream, 10 * kPieceBytes);
    fence(stream);
  }
  pump_all();
  path_.stop({StatusCode::kUnavailable, "gone"});
  link_.finish_all();
  EXPECT_EQ(path_.pump(), 0u);
  std::map<OperationId, int> ends;
  for (const auto& event : events_) {
    const auto& done = std::get<OperationDone>(event);
    EXPECT_EQ(done.status.code(), StatusCode::kUnavailable);
    ++ends[done.operation];
  }
  EXPECT_EQ(ends.size(), 6u);
  EXPECT_EQ(events_.size(), 6u);
  EXPECT_EQ(path_.num_outstanding(), 0u);
}

}  // namespace
}  // namespace crossdock
