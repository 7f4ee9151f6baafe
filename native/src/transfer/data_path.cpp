#include "data_path.h"

#include <algorithm>
#include <cassert>
#include <chrono>

#include "spans.h"
#include "ucx_worker.h"

namespace crossdock {
namespace {

// Over shared memory a piece is a copy that holds the thread for its whole length (0.4 ms at
// 10 GB/s); larger ones measured no faster.
constexpr uint64_t kPieceBytesMax = 4u << 20;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<CopySpan> cut(const std::vector<CopySpan>& spans) {
  std::vector<CopySpan> pieces;
  for (const CopySpan& span : spans) {
    for (uint64_t done = 0; done < span.length_bytes; done += kPieceBytesMax) {
      pieces.push_back({span.local_offset + done, span.remote_offset + done,
                        std::min(kPieceBytesMax, span.length_bytes - done)});
    }
  }
  return pieces;
}

}  // namespace

void DataPath::open(const Target& target) { target_ = target; }

void DataPath::post_probe() { add(Kind::kProbe, 0); }

void DataPath::post_write(OperationId operation, const std::vector<CopySpan>& spans) {
  add_transfer(Kind::kWrite, operation, spans);
}

void DataPath::post_read(OperationId operation, const std::vector<CopySpan>& spans) {
  add_transfer(Kind::kRead, operation, spans);
}

void DataPath::post_fence(OperationId operation) { add(Kind::kFence, operation); }

DataPath::Record& DataPath::add(Kind kind, OperationId operation) {
  assert(!stopped_);
  auto record = std::make_unique<Record>();
  record->kind = kind;
  record->operation = operation;
  Record* raw = record.get();
  records_.emplace(raw, std::move(record));
  queue_.push_back(raw);
  return *raw;
}

void DataPath::add_transfer(Kind kind, OperationId operation, const std::vector<CopySpan>& spans) {
  Record& record = add(kind, operation);
  record.pieces = cut(merge_spans(spans));
  if (!record.pieces.empty()) return;
  queue_.pop_back();
  finish(record);
}

bool DataPath::can_pump() const {
  if (target_.endpoint == nullptr || stopped_) return false;
  if (!read_backs_.empty()) return true;
  return !queue_.empty() && in_flight_bytes_ < in_flight_bytes_max_;
}

size_t DataPath::pump() {
  if (!can_pump()) return 0;
  if (!read_backs_.empty()) {
    Record& record = *read_backs_.front();
    read_backs_.pop_front();
    return post_fence_step(record);
  }
  Record& record = *queue_.front();
  if (record.posted_ns == 0) record.posted_ns = now_ns();
  if (record.kind == Kind::kFence || record.kind == Kind::kProbe) {
    queue_.pop_front();
    return post_fence_step(record);
  }
  return post_piece(record);
}

size_t DataPath::post_piece(Record& record) {
  const CopySpan piece = record.pieces[record.next_piece++];
  if (record.next_piece == record.pieces.size()) queue_.pop_front();
  ++record.num_outstanding;
  ++record.num_transfers;
  in_flight_bytes_ += piece.length_bytes;
  auto user = std::make_unique<Piece>(Piece{this, &record, piece.length_bytes});
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
  param.cb.send = on_complete;
  param.user_data = user.get();
  param.memh = target_.local_memory;
  std::byte* local = target_.local_base + piece.local_offset;
  const uint64_t remote = target_.remote_base + piece.remote_offset;
  const auto post = record.kind == Kind::kWrite
                        ? ucp_put_nbx(target_.endpoint, local, piece.length_bytes, remote,
                                      target_.remote_key, &param)
                        : ucp_get_nbx(target_.endpoint, local, piece.length_bytes, remote,
                                      target_.remote_key, &param);
  track(post, std::move(user));
  return piece.length_bytes;
}

size_t DataPath::post_fence_step(Record& record) {
  const bool flush = record.fence_step == FenceStep::kFlush;
  record.fence_step = flush && target_.read_back ? FenceStep::kReadBack : FenceStep::kPosted;
  ++record.num_outstanding;
  ++record.num_transfers;
  auto user = std::make_unique<Piece>(Piece{this, &record, 0});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_complete;
  param.user_data = user.get();
  if (flush) {
    track(ucp_ep_flush_nbx(target_.endpoint, &param), std::move(user));
  } else {
    track(ucp_get_nbx(target_.endpoint, &record.read_back, 1, target_.remote_base,
                      target_.remote_key, &param),
          std::move(user));
  }
  return 1;
}

void DataPath::track(ucs_status_ptr_t request, std::unique_ptr<Piece> piece) {
  if (UCS_PTR_IS_PTR(request)) {
    ++num_requests_;
    (void)piece.release();  // on_complete deletes it
  } else {
    complete(*piece, UCS_PTR_STATUS(request));
  }
}

void DataPath::on_complete(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<Piece> piece(static_cast<Piece*>(user_data));
  ucp_request_free(request);
  --piece->path->num_requests_;
  piece->path->complete(*piece, status);
}

void DataPath::complete(const Piece& piece, ucs_status_t status) {
  Record& record = *piece.record;
  in_flight_bytes_ -= piece.bytes;
  --record.num_outstanding;
  if (status == UCS_OK) {
    record.bytes += piece.bytes;
  } else if (record.status.ok()) {
    record.status = status_of(status, "one-sided transfer");
  }
  if (stopped_) record.status = *stopped_;
  if (record.fence_step == FenceStep::kReadBack && record.status.ok()) {
    read_backs_.push_back(&record);
  } else if (record.num_outstanding == 0 && record.next_piece == record.pieces.size()) {
    finish(record);
  }
}

void DataPath::finish(Record& record) {
  if (record.kind == Kind::kProbe) {
    probe_status_ = record.status;
  } else {
    OperationDone done;
    done.operation = record.operation;
    done.status = record.status;
    done.bytes = record.bytes;
    done.num_transfers = record.num_transfers;
    done.duration_ns =
        record.posted_ns == 0 ? 0 : static_cast<uint64_t>(now_ns() - record.posted_ns);
    events_.emplace_back(std::move(done));
  }
  records_.erase(&record);
}

void DataPath::stop(const Status& status) {
  if (stopped_) return;
  stopped_ = status;
  for (Record* record : read_backs_) record->next_piece = record->pieces.size();
  queue_.insert(queue_.end(), read_backs_.begin(), read_backs_.end());
  read_backs_.clear();
  for (Record* record : queue_) {
    record->pieces.resize(record->next_piece);
    record->status = status;
    if (record->num_outstanding == 0) finish(*record);
  }
  queue_.clear();
}

}  // namespace crossdock
