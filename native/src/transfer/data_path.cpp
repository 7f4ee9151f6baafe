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

std::vector<CopySpan> cut(const std::vector<CopySpan>& spans, uint64_t piece_bytes_max) {
  std::vector<CopySpan> pieces;
  for (const CopySpan& span : spans) {
    for (uint64_t done = 0; done < span.length_bytes; done += piece_bytes_max) {
      pieces.push_back({span.local_offset + done, span.remote_offset + done,
                        std::min(piece_bytes_max, span.length_bytes - done)});
    }
  }
  return pieces;
}

}  // namespace

DataPath::Record& DataPath::add(Kind kind, OperationId operation, StreamId stream) {
  assert(link_ != nullptr && !stopped_);
  auto record = std::make_unique<Record>();
  record->kind = kind;
  record->operation = operation;
  record->num_to_post = 1;
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
  const std::vector<CopySpan> merged = merge_spans(spans);
  if (merged.empty()) {
    events_.emplace_back(OperationDone{.operation = operation});
    return;
  }
  Record& record = add(kind, operation, stream);
  record.num_transfers = static_cast<uint32_t>(merged.size());
  record.bulk = total_bytes(merged) >= kBulkBytesMin;
  record.pieces = cut(merged, link_->piece_bytes_max());
  record.num_to_post = record.pieces.size();
}

uint64_t DataPath::next_piece_bytes() const {
  const Record& record = *queues_.at(turns_.front()).front();
  return record.pieces.empty() ? 0 : record.pieces[record.num_posted].length_bytes;
}

bool DataPath::can_pump() const {
  if (link_ == nullptr || stopped_ || turns_.empty()) return false;
  return in_flight_bytes_ == 0 || in_flight_bytes_ + next_piece_bytes() <= in_flight_bytes_max_;
}

// The record whose next piece is to be posted, which is counted as posted.
DataPath::Record& DataPath::take_turn() {
  const StreamId stream = turns_.front();
  turns_.pop_front();
  const auto queue = queues_.find(stream);
  Record& record = *queue->second.front();
  if (++record.num_posted == record.num_to_post) queue->second.pop_front();
  if (queue->second.empty()) {
    queues_.erase(queue);
  } else {
    turns_.push_back(stream);
  }
  return record;
}

size_t DataPath::pump() {
  if (!can_pump()) return 0;
  Record& record = take_turn();
  if (record.posted_ns == 0) record.posted_ns = now_ns();
  const size_t index = record.num_posted - 1;
  const uint64_t token = next_token_++;
  if (record.pieces.empty()) {
    pieces_.emplace(token, Piece{&record, 0});
    link_->fence(token);
    return 1;
  }
  // Copied, since the record may be gone when the link returns.
  const CopySpan span = record.pieces[index];
  const bool bulk = record.bulk;
  pieces_.emplace(token, Piece{&record, span.length_bytes});
  in_flight_bytes_ += span.length_bytes;
  if (record.kind == Kind::kWrite) {
    link_->put(span, token, bulk);
  } else {
    link_->get(span, token);
  }
  return span.length_bytes;
}

void DataPath::on_piece(uint64_t token, ucs_status_t status) {
  const auto found = pieces_.find(token);
  assert(found != pieces_.end());
  const Piece piece = found->second;
  pieces_.erase(found);
  Record& record = *piece.record;
  in_flight_bytes_ -= piece.bytes;
  ++record.num_finished;
  if (status == UCS_OK) {
    record.bytes += piece.bytes;
  } else if (record.status.ok()) {
    record.status = status_of(status, "one-sided transfer");
  }
  if (stopped_) record.status = *stopped_;
  if (record.num_finished == record.num_to_post) finish(record);
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
      record->num_to_post = record->num_posted;
      if (record->num_finished == record->num_to_post) finish(*record);
    }
  }
  if (link_ != nullptr) link_->close();
}

}  // namespace crossdock
