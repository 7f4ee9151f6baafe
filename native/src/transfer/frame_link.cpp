#include "frame_link.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace crossdock {
namespace {

// One frame with its headers fits UCX's TCP segment (256 KiB, see UcxTransport::open_workers), so
// that the receiver finds it whole in the buffer it came in.
constexpr uint64_t kFrameBytesMax = 252u << 10;
// Read bytes on their way to one peer.
constexpr uint64_t kAnswerBytesMax = 8u << 20;
// A peer's own pacing keeps it far below.
constexpr size_t kAnswersMax = 1u << 16;

bool inside(uint64_t offset, uint64_t length, uint64_t bytes) {
  return length <= bytes && offset <= bytes - length;
}

}  // namespace

bool FrameHead::read(const void* wire, size_t wire_bytes) {
  if (wire_bytes < sizeof header || wire_bytes > sizeof header + sizeof spans) return false;
  std::memcpy(&header, wire, sizeof header);
  std::memcpy(spans, static_cast<const std::byte*>(wire) + sizeof header,
              wire_bytes - sizeof header);
  num_spans = static_cast<uint32_t>((wire_bytes - sizeof header) / sizeof(FrameSpan));
  return header.magic == kFrameMagic && this->wire_bytes() == wire_bytes;
}

DataLink::PieceMax FrameLink::piece_max() const { return {kFrameBytesMax, kFrameSpansMax}; }

void FrameLink::put(std::span<const CopySpan> spans, uint64_t token, bool) {
  assert(!spans.empty() && spans.size() <= kFrameSpansMax);
  auto posted = std::make_unique<Posted>();
  posted->head.header.kind = FrameKind::kWrite;
  for (const CopySpan& span : spans) {
    const uint32_t i = posted->head.num_spans++;
    posted->head.spans[i] = {span.remote_offset, span.length_bytes};
    posted->parts[i] = {segment_.data() + span.local_offset, span.length_bytes};
    written_bytes_ += span.length_bytes;
  }
  posted->token = token;
  posted->reports = true;
  send(std::move(posted), spans.size());
}

void FrameLink::get(const CopySpan& span, uint64_t token) {
  auto posted = std::make_unique<Posted>();
  FrameHeader& header = posted->head.header;
  header.kind = FrameKind::kRead;
  header.offset = span.remote_offset;
  header.count_bytes = span.length_bytes;
  header.request = ask(token, span);
  send(std::move(posted), 0);
}

void FrameLink::fence(uint64_t token) {
  auto posted = std::make_unique<Posted>();
  FrameHeader& header = posted->head.header;
  header.kind = FrameKind::kFence;
  header.count_bytes = written_bytes_;
  header.request = ask(token, {});
  send(std::move(posted), 0);
}

uint64_t FrameLink::ask(uint64_t token, const CopySpan& span) {
  asked_.emplace(next_request_, Asked{token, span});
  return next_request_++;
}

bool FrameLink::can_pump() const {
  if (closed_) return false;
  if (!acks_.empty() && acks_.front().fence_bytes <= received_bytes_) return true;
  return !reads_.empty() && answer_bytes_in_flight_ < kAnswerBytesMax;
}

bool FrameLink::pump() {
  if (!can_pump()) return false;
  auto posted = std::make_unique<Posted>();
  FrameHeader& header = posted->head.header;
  if (!acks_.empty() && acks_.front().fence_bytes <= received_bytes_) {
    header.kind = FrameKind::kAck;
    header.request = acks_.front().request;
    acks_.pop_front();
    send(std::move(posted), 0);
    return true;
  }
  Answer& read = reads_.front();
  const uint64_t length = std::min(kFrameBytesMax, read.length_bytes - read.sent_bytes);
  header.kind = FrameKind::kReadBytes;
  header.request = read.request;
  header.offset = read.sent_bytes;
  posted->parts[0] = {segment_.data() + read.offset + read.sent_bytes, length};
  read.sent_bytes += length;
  if (read.sent_bytes == read.length_bytes) reads_.pop_front();
  posted->answer_bytes = length;
  answer_bytes_in_flight_ += length;
  send(std::move(posted), 1);
  return true;
}

void FrameLink::close() {
  closed_ = true;
  acks_.clear();
  reads_.clear();
  for (const auto& [request, asked] : std::exchange(asked_, {})) {
    sink_.on_piece(asked.token, UCS_ERR_CANCELED);
  }
}

void FrameLink::send(std::unique_ptr<Posted> posted, size_t num_parts) {
  posted->link = this;
  FrameHeader& header = posted->head.header;
  header.magic = kFrameMagic;
  header.sender_epoch = epoch_;
  header.incarnation = incarnation_;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = posted.get();
  const void* body = posted->parts;
  size_t count = num_parts;
  if (num_parts > 1) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = UCP_DATATYPE_IOV;
  } else {
    body = num_parts == 0 ? nullptr : posted->parts[0].buffer;
    count = num_parts == 0 ? 0 : posted->parts[0].length;
  }
  ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, kFrameMessageId, &posted->head,
                                             posted->head.wire_bytes(), body, count, &param);
  if (UCS_PTR_IS_PTR(request)) {
    ++num_requests_;
    (void)posted.release();  // on_sent deletes it
  } else {
    sent(*posted, UCS_PTR_STATUS(request));
  }
}

void FrameLink::on_sent(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<Posted> posted(static_cast<Posted*>(user_data));
  ucp_request_free(request);
  --posted->link->num_requests_;
  posted->link->sent(*posted, status);
}

void FrameLink::sent(const Posted& posted, ucs_status_t status) {
  answer_bytes_in_flight_ -= posted.answer_bytes;
  if (posted.reports) {
    sink_.on_piece(posted.token, status);
  } else if (status != UCS_OK) {
    // A question that could not be sent gets no answer.
    const FrameHeader& header = posted.head.header;
    const auto asked = asked_.find(header.request);
    const bool question = header.kind == FrameKind::kFence || header.kind == FrameKind::kRead;
    if (!question || asked == asked_.end()) return;
    const uint64_t token = asked->second.token;
    asked_.erase(asked);
    sink_.on_piece(token, status);
  }
}

// Nothing is copied of a frame that is wrong anywhere.
bool FrameLink::on_write(const FrameHead& head, std::span<const std::byte> body) {
  uint64_t left_bytes = body.size();
  for (uint32_t i = 0; i < head.num_spans; ++i) {
    const FrameSpan& span = head.spans[i];
    if (span.length_bytes == 0 || span.length_bytes > left_bytes ||
        !inside(span.offset, span.length_bytes, segment_.size())) {
      return false;
    }
    left_bytes -= span.length_bytes;
  }
  if (head.num_spans == 0 || left_bytes != 0) return false;
  const std::byte* from = body.data();
  for (uint32_t i = 0; i < head.num_spans; ++i) {
    std::memcpy(segment_.data() + head.spans[i].offset, from, head.spans[i].length_bytes);
    from += head.spans[i].length_bytes;
  }
  received_bytes_ += body.size();
  return true;
}

bool FrameLink::on_frame(const FrameHead& head, std::span<const std::byte> body) {
  if (closed_) return true;
  const FrameHeader& header = head.header;
  if (header.kind != FrameKind::kWrite && head.num_spans != 0) return false;
  switch (header.kind) {
    case FrameKind::kWrite: return on_write(head, body);
    case FrameKind::kFence:
      if (acks_.size() >= kAnswersMax) return false;
      acks_.push_back({header.request, header.count_bytes});
      return true;
    case FrameKind::kRead:
      if (reads_.size() >= kAnswersMax || header.count_bytes == 0 ||
          !inside(header.offset, header.count_bytes, segment_.size())) {
        return false;
      }
      reads_.push_back({header.request, 0, header.offset, header.count_bytes});
      return true;
    case FrameKind::kAck:
    case FrameKind::kReadBytes: return on_answer(header, body);
  }
  return false;
}

bool FrameLink::on_answer(const FrameHeader& header, std::span<const std::byte> body) {
  const auto found = asked_.find(header.request);
  if (found == asked_.end()) return false;
  Asked& asked = found->second;
  if (header.kind == FrameKind::kReadBytes) {
    if (body.empty() || !inside(header.offset, body.size(), asked.span.length_bytes)) return false;
    std::memcpy(segment_.data() + asked.span.local_offset + header.offset, body.data(),
                body.size());
    asked.received_bytes += body.size();
    if (asked.received_bytes < asked.span.length_bytes) return true;
  } else if (asked.span.length_bytes != 0) {
    return false;
  }
  const uint64_t token = asked.token;
  asked_.erase(found);
  sink_.on_piece(token, UCS_OK);
  return true;
}

}  // namespace crossdock
