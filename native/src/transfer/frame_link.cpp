#include "frame_link.h"

#include <algorithm>
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

uint64_t FrameLink::piece_bytes_max() const { return kFrameBytesMax; }

void FrameLink::put(const CopySpan& span, uint64_t token, bool) {
  FrameHeader header;
  header.kind = FrameKind::kWrite;
  header.offset = span.remote_offset;
  written_bytes_ += span.length_bytes;
  auto posted = std::make_unique<Posted>();
  posted->token = token;
  posted->reports = true;
  send(header, segment_.subspan(span.local_offset, span.length_bytes), std::move(posted));
}

void FrameLink::get(const CopySpan& span, uint64_t token) {
  FrameHeader header;
  header.kind = FrameKind::kRead;
  header.offset = span.remote_offset;
  header.count_bytes = span.length_bytes;
  header.request = ask(token, span);
  send(header, {}, std::make_unique<Posted>());
}

void FrameLink::fence(uint64_t token) {
  FrameHeader header;
  header.kind = FrameKind::kFence;
  header.count_bytes = written_bytes_;
  header.request = ask(token, {});
  send(header, {}, std::make_unique<Posted>());
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
  FrameHeader header;
  auto posted = std::make_unique<Posted>();
  if (!acks_.empty() && acks_.front().fence_bytes <= received_bytes_) {
    header.kind = FrameKind::kAck;
    header.request = acks_.front().request;
    acks_.pop_front();
    send(header, {}, std::move(posted));
    return true;
  }
  Answer& read = reads_.front();
  const uint64_t length = std::min(kFrameBytesMax, read.length_bytes - read.sent_bytes);
  header.kind = FrameKind::kReadBytes;
  header.request = read.request;
  header.offset = read.sent_bytes;
  const auto body = segment_.subspan(read.offset + read.sent_bytes, length);
  read.sent_bytes += length;
  if (read.sent_bytes == read.length_bytes) reads_.pop_front();
  posted->answer_bytes = length;
  answer_bytes_in_flight_ += length;
  send(header, body, std::move(posted));
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

void FrameLink::send(const FrameHeader& header, std::span<const std::byte> body,
                     std::unique_ptr<Posted> posted) {
  posted->link = this;
  posted->header = header;
  posted->header.magic = kFrameMagic;
  posted->header.sender_epoch = epoch_;
  posted->header.incarnation = incarnation_;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = posted.get();
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kFrameMessageId, &posted->header, sizeof posted->header,
                      body.data(), body.size(), &param);
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
    const auto asked = asked_.find(posted.header.request);
    const bool question =
        posted.header.kind == FrameKind::kFence || posted.header.kind == FrameKind::kRead;
    if (!question || asked == asked_.end()) return;
    const uint64_t token = asked->second.token;
    asked_.erase(asked);
    sink_.on_piece(token, status);
  }
}

bool FrameLink::on_frame(const FrameHeader& header, std::span<const std::byte> body) {
  if (closed_) return true;
  switch (header.kind) {
    case FrameKind::kWrite:
      if (body.empty() || !inside(header.offset, body.size(), segment_.size())) return false;
      std::memcpy(segment_.data() + header.offset, body.data(), body.size());
      received_bytes_ += body.size();
      return true;
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
