// The one-sided operations towards one peer, over one link.
//
// An operation is cut into pieces, as large as the link takes them, and a piece of a write gathers
// spans where the link can. Pieces are posted one at a time by pump(), so that the caller can be
// fair among peers, and only while the bytes in flight stay within a bound (a single piece may be
// larger than it). Streams take turns piece by piece; within one, operations are posted in
// order, so a fence is posted when every piece of its stream before it has been.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "crossdock/transfer/transfer.h"
#include "data_link.h"
#include "slot_pool.h"

namespace crossdock {

class DataPath : public PieceSink {
 public:
  // Events of finished operations are appended to `events`.
  DataPath(uint64_t in_flight_bytes_max, std::vector<TransferEvent>& events)
      : in_flight_bytes_max_(in_flight_bytes_max), events_(events) {}
  DataPath(const DataPath&) = delete;
  DataPath& operator=(const DataPath&) = delete;

  // The link must outlive whatever is posted.
  void open(DataLink& link) { link_ = &link; }
  // A fence of our own: probe_status() has the outcome once there is one.
  void post_probe() { add(Kind::kProbe, 0, 0); }
  const std::optional<Status>& probe_status() const { return probe_status_; }

  // Only on an open path that has not been stopped.
  void post_write(const WriteSpans& write) {
    add_transfer(Kind::kWrite, write.operation, write.stream, write.spans);
  }
  void post_read(const ReadSpans& read) {
    add_transfer(Kind::kRead, read.operation, read.stream, read.spans);
  }
  void post_fence(const Fence& fence) { add(Kind::kFence, fence.operation, fence.stream); }
  size_t num_outstanding() const { return records_.num_used(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }

  // Posts the next piece. Returns its bytes (at least 1), or 0 when nothing can be posted now.
  size_t pump();
  bool can_pump() const;

  // Ends whatever is outstanding with this status, queued operations at once and posted ones as
  // the link lets go of them, and posts nothing more.
  void stop(const Status& status);

  void on_piece(uint64_t token, ucs_status_t status) override;

 private:
  enum class Kind : uint8_t { kWrite, kRead, kFence, kProbe };
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Record {
    uint32_t next = kNone;  // of its stream
    Kind kind = Kind::kWrite;
    OperationId operation = 0;
    std::vector<CopySpan> spans;  // of a write or read
    size_t next_span = 0;         // spans before it are posted,
    uint64_t next_offset = 0;     // and of it what lies before this
    uint64_t left_bytes = 0;      // still to be posted
    bool all_posted = false;
    size_t num_in_flight = 0;  // pieces
    uint64_t bytes = 0;
    bool bulk = false;
    uint32_t num_transfers = 0;  // after merging, before cutting
    int64_t posted_ns = 0;
    Status status;
  };
  struct Piece {
    uint32_t record = kNone;
    uint64_t bytes = 0;
  };
  // Its records that have something left to post, oldest first; at least one.
  struct Stream {
    StreamId id = 0;
    uint32_t first = kNone;
    uint32_t last = kNone;
  };

  Record& add(Kind kind, OperationId operation, StreamId stream);
  void add_transfer(Kind kind, OperationId operation, StreamId stream,
                    const std::vector<CopySpan>& spans);
  uint64_t next_piece_bytes_max() const;
  uint64_t cut_piece(Record& record);
  void end_turn();
  void finish_if_over(uint32_t record);

  const uint64_t in_flight_bytes_max_;
  std::vector<TransferEvent>& events_;
  DataLink* link_ = nullptr;
  std::optional<Status> stopped_;
  std::optional<Status> probe_status_;
  SlotPool<Record> records_;
  std::deque<Stream> turns_;
  SlotPool<Piece> pieces_;       // in flight; a slot is a piece's token
  std::vector<CopySpan> piece_;  // that is being posted
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace crossdock
