// The one-sided operations towards one peer, in order, over one endpoint.
//
// An operation is cut into pieces. Pieces are posted one at a time by pump(), so that the caller
// can be fair among peers, and only while the bytes in flight stay under a bound. A fence is posted
// when every write before it has been, and is a flush followed, except over shared memory where a
// put is a copy that has happened, by one byte read back: only that proves arrival.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

class DataPath {
 public:
  struct Target {
    ucp_ep_h endpoint = nullptr;
    ucp_rkey_h remote_key = nullptr;
    ucp_mem_h local_memory = nullptr;
    std::byte* local_base = nullptr;
    uint64_t remote_base = 0;
    bool read_back = true;  // on a fence
  };

  // Events of finished operations are appended to `events`.
  DataPath(uint64_t in_flight_bytes_max, std::vector<TransferEvent>& events)
      : in_flight_bytes_max_(in_flight_bytes_max), events_(events) {}
  DataPath(const DataPath&) = delete;
  DataPath& operator=(const DataPath&) = delete;

  void open(const Target& target);
  // A fence of our own: probe_status() has the outcome once there is one.
  void post_probe();
  const std::optional<Status>& probe_status() const { return probe_status_; }

  void post_write(OperationId operation, const std::vector<CopySpan>& spans);
  void post_read(OperationId operation, const std::vector<CopySpan>& spans);
  void post_fence(OperationId operation);
  size_t num_outstanding() const { return records_.size(); }

  // Posts the next piece. Returns its bytes (at least 1), or 0 when nothing can be posted now.
  size_t pump();
  bool can_pump() const;

  // Ends whatever is outstanding with this status, queued operations at once and posted ones as
  // UCX lets go of them, and posts nothing more.
  void stop(const Status& status);
  // No UCX request is outstanding.
  bool quiet() const { return num_requests_ == 0; }

 private:
  enum class Kind : uint8_t { kWrite, kRead, kFence, kProbe };
  enum class FenceStep : uint8_t { kFlush, kReadBack, kPosted };
  struct Record {
    Kind kind = Kind::kWrite;
    OperationId operation = 0;
    std::vector<CopySpan> pieces;
    size_t next_piece = 0;
    uint32_t num_outstanding = 0;
    uint32_t num_transfers = 0;
    uint64_t bytes = 0;
    int64_t posted_ns = 0;
    FenceStep fence_step = FenceStep::kFlush;
    std::byte read_back{};
    Status status;
  };
  struct Piece {
    DataPath* path = nullptr;
    Record* record = nullptr;
    uint64_t bytes = 0;
  };

  Record& add(Kind kind, OperationId operation);
  void add_transfer(Kind kind, OperationId operation, const std::vector<CopySpan>& spans);
  size_t post_piece(Record& record);
  size_t post_fence_step(Record& record);
  void track(ucs_status_ptr_t request, std::unique_ptr<Piece> piece);
  static void on_complete(void* request, ucs_status_t status, void* user_data);
  void complete(const Piece& piece, ucs_status_t status);
  void finish(Record& record);

  const uint64_t in_flight_bytes_max_;
  std::vector<TransferEvent>& events_;
  Target target_;
  std::optional<Status> stopped_;
  std::optional<Status> probe_status_;
  std::unordered_map<Record*, std::unique_ptr<Record>> records_;
  std::deque<Record*> queue_;       // with something left to post, oldest first
  std::deque<Record*> read_backs_;  // flushed fences whose byte is still to be read
  uint64_t in_flight_bytes_ = 0;
  size_t num_requests_ = 0;
};

}  // namespace crossdock
