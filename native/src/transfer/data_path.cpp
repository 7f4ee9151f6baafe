#include "data_path.h"

#include <algorithm>
#include <cassert>
#include <chrono>

#include "bulk_copy.h"
#include "spans.h"
#include "ucx_worker.h"

namespace crossdock {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

DataPath::Record& DataPath::add(Kind kind, OperationId operation, StreamId stream) {
  assert(link_ != nullptr && !stopped_);
  const uint32_t slot = records_.acquire();
  Record& record = records_[slot];
  record.kind = kind;
  record.operation = operation;
  record.num_transfers = 1;
  const auto found = std::find_if(turns_.begin(), turns_.end(),
                                  [&](const Stream& queued) { return queued.id == stream; });
  if (found == turns_.end()) {
    turns_.push_back({stream, slot, slot});
  } else {
    records_[found->last].next = slot;
    found->last = slot;
  }
  return record;
}

void DataPath::add_transfer(Kind kind, OperationId operation, StreamId stream,
                            const std::vector<CopySpan>& spans) {
  std::vector<CopySpan> merged = merge_spans(spans);
  if (merged.empty()) {
    events_.emplace_back(OperationDone{.operation = operation});
    return;
  }
  Record& record = add(kind, operation, stream);
  record.num_transfers = static_cast<uint32_t>(merged.size());
  record.left_bytes = total_bytes(merged);
  record.bulk = record.left_bytes >= kBulkBytesMin;
  record.spans = std::move(merged);
}

uint64_t DataPath::next_piece_bytes_max() const {
  const Record& record = records_[turns_.front().first];
  return std::min(record.left_bytes, link_->piece_max().bytes);
}

bool DataPath::can_pump() const {
  if (link_ == nullptr || stopped_ || turns_.empty()) return false;
  return in_flight_bytes_ == 0 || in_flight_bytes_ + next_piece_bytes_max() <= in_flight_bytes_max_;
}

// Into piece_; nothing for a fence. Returns its bytes.
uint64_t DataPath::cut_piece(Record& record) {
  const DataLink::PieceMax max = link_->piece_max();
  const size_t num_spans_max = record.kind == Kind::kWrite ? max.num_spans : 1;
  uint64_t bytes = 0;
  piece_.clear();
  while (record.next_span < record.spans.size() && piece_.size() < num_spans_max &&
         bytes < max.bytes) {
    const CopySpan& span = record.spans[record.next_span];
    const uint64_t done = record.next_offset;
    const uint64_t length = std::min(span.length_bytes - done, max.bytes - bytes);
    piece_.push_back({span.local_offset + done, span.remote_offset + done, length});
    bytes += length;
    record.next_offset += length;
    if (record.next_offset < span.length_bytes) break;
    ++record.next_span;
    record.next_offset = 0;
  }
  record.left_bytes -= bytes;
  record.all_posted = record.next_span == record.spans.size();
  return bytes;
}

// The stream whose turn it is goes behind the others, if it has more to post.
void DataPath::end_turn() {
  Stream stream = turns_.front();
  turns_.pop_front();
  const Record& record = records_[stream.first];
  if (record.all_posted) stream.first = record.next;
  if (stream.first != kNone) turns_.push_back(stream);
}

size_t DataPath::pump() {
  if (!can_pump()) return 0;
  const uint32_t slot = turns_.front().first;
  Record& record = records_[slot];
  const uint64_t bytes = cut_piece(record);
  end_turn();
  if (record.posted_ns == 0) record.posted_ns = now_ns();
  ++record.num_in_flight;
  in_flight_bytes_ += bytes;
  const uint32_t token = pieces_.acquire();
  pieces_[token] = {slot, bytes};
  // The record may be gone when the link returns.
  if (piece_.empty()) {
    link_->fence(token);
    return 1;
  }
  if (record.kind == Kind::kWrite) {
    link_->put(piece_, token, record.bulk);
  } else {
    link_->get(piece_.front(), token);
  }
  return bytes;
}

void DataPath::on_piece(uint64_t token, ucs_status_t status) {
  const Piece piece = pieces_[static_cast<uint32_t>(token)];
  assert(piece.record != kNone);
  pieces_.release(static_cast<uint32_t>(token));
  Record& record = records_[piece.record];
  in_flight_bytes_ -= piece.bytes;
  --record.num_in_flight;
  if (status == UCS_OK) {
    record.bytes += piece.bytes;
  } else if (record.status.ok()) {
    record.status = status_of(status, "one-sided transfer");
  }
  if (stopped_) record.status = *stopped_;
  finish_if_over(piece.record);
}

void DataPath::finish_if_over(uint32_t slot) {
  Record& record = records_[slot];
  if (!record.all_posted || record.num_in_flight != 0) return;
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
  records_.release(slot);
}

void DataPath::stop(const Status& status) {
  if (stopped_) return;
  stopped_ = status;
  for (const Stream& stream : std::exchange(turns_, {})) {
    for (uint32_t slot = stream.first; slot != kNone;) {
      Record& record = records_[slot];
      const uint32_t next = record.next;
      record.status = status;
      record.all_posted = true;
      finish_if_over(slot);
      slot = next;
    }
  }
  if (link_ != nullptr) link_->close();
}

}  // namespace crossdock
