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
  auto record = std::make_unique<Record>();
  record->kind = kind;
  record->operation = operation;
  record->num_transfers = 1;
  Record* raw = record.get();
  records_.emplace(raw, std::move(record));
  auto& queue = queues_[stream];
  if (queue.empty()) turns_.push_back(stream);
  queue.push_back(raw);
  return *raw;
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
  const Record& record = *queues_.at(turns_.front()).front();
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
  const StreamId stream = turns_.front();
  turns_.pop_front();
  const auto queue = queues_.find(stream);
  if (queue->second.front()->all_posted) queue->second.pop_front();
  if (queue->second.empty()) {
    queues_.erase(queue);
  } else {
    turns_.push_back(stream);
  }
}

size_t DataPath::pump() {
  if (!can_pump()) return 0;
  Record& record = *queues_.at(turns_.front()).front();
  const uint64_t bytes = cut_piece(record);
  end_turn();
  if (record.posted_ns == 0) record.posted_ns = now_ns();
  ++record.num_in_flight;
  in_flight_bytes_ += bytes;
  const uint64_t token = next_token_++;
  pieces_.emplace(token, Piece{&record, bytes});
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
  const auto found = pieces_.find(token);
  assert(found != pieces_.end());
  const Piece piece = found->second;
  pieces_.erase(found);
  Record& record = *piece.record;
  in_flight_bytes_ -= piece.bytes;
  --record.num_in_flight;
  if (status == UCS_OK) {
    record.bytes += piece.bytes;
  } else if (record.status.ok()) {
    record.status = status_of(status, "one-sided transfer");
  }
  if (stopped_) record.status = *stopped_;
  if (record.all_posted && record.num_in_flight == 0) finish(record);
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
  turns_.clear();
  for (const auto& [stream, queue] : std::exchange(queues_, {})) {
    for (Record* record : queue) {
      record->status = status;
      record->all_posted = true;
      if (record->num_in_flight == 0) finish(*record);
    }
  }
  if (link_ != nullptr) link_->close();
}

}  // namespace crossdock
