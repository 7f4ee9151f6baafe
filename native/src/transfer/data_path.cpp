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

void DataPath::post_write(OperationId operation, const std::vector<CopySpan>& spans) {
  add_transfer(Kind::kWrite, operation, spans);
}

void DataPath::post_read(OperationId operation, const std::vector<CopySpan>& spans) {
  add_transfer(Kind::kRead, operation, spans);
}

DataPath::Record& DataPath::add(Kind kind, OperationId operation) {
  assert(link_ != nullptr && !stopped_);
  auto record = std::make_unique<Record>();
  record->kind = kind;
  record->operation = operation;
  record->num_to_post = 1;
  record->num_transfers = 1;
  Record* raw = record.get();
  records_.emplace(raw, std::move(record));
  queue_.push_back(raw);
  return *raw;
}

void DataPath::add_transfer(Kind kind, OperationId operation, const std::vector<CopySpan>& spans) {
  Record& record = add(kind, operation);
  const std::vector<CopySpan> merged = merge_spans(spans);
  record.num_transfers = static_cast<uint32_t>(merged.size());
  record.bulk = total_bytes(merged) >= kBulkBytesMin;
  record.pieces = cut(merged, link_->piece_bytes_max());
  record.num_to_post = record.pieces.size();
  if (record.num_to_post != 0) return;
  queue_.pop_back();
  finish(record);
}

bool DataPath::can_pump() const {
  return link_ != nullptr && !stopped_ && !queue_.empty() &&
         in_flight_bytes_ < in_flight_bytes_max_;
}

size_t DataPath::pump() {
  if (!can_pump()) return 0;
  Record& record = *queue_.front();
  if (record.posted_ns == 0) record.posted_ns = now_ns();
  const size_t index = record.num_posted++;
  if (record.num_posted == record.num_to_post) queue_.pop_front();
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
  for (Record* record : std::exchange(queue_, {})) {
    record->status = status;
    record->num_to_post = record->num_posted;
    if (record->num_finished == record->num_to_post) finish(*record);
  }
  if (link_ != nullptr) link_->close();
}

}  // namespace crossdock
