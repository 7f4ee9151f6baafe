// Pacing without time: what is posted when, over a link that finishes a piece when it is told to.
#include "../../src/transfer/data_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace crossdock {
namespace {

constexpr uint64_t kPieceBytes = 1000;
constexpr uint64_t kInFlightBytes = 3500;

class HeldLink : public DataLink {
 public:
  struct Posted {
    uint64_t token = 0;
    CopySpan span;
    bool fence = false;
  };

  explicit HeldLink(PieceSink& sink) : sink_(sink) {}
  uint64_t piece_bytes_max() const override { return kPieceBytes; }
  void put(const CopySpan& span, uint64_t token, bool) override { add({token, span}); }
  void get(const CopySpan& span, uint64_t token) override { add({token, span}); }
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

  // The spans of a stream begin at its own offset, so that pieces tell where they come from.
  static constexpr uint64_t kStreamBytes = 1u << 20;
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
      streams.push_back(piece.span.local_offset / kStreamBytes);
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
      const bool ours = !piece.fence && piece.span.local_offset / kStreamBytes == stream;
      if (ours) bytes += piece.span.length_bytes;
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
