// One-sided operations over TCP, as frames of our own.
//
// TCP has no puts. UCX emulates them by active messages that the target's progress copies into
// place and acknowledges one by one; the emulation aborts the whole process when such an
// acknowledgement meets a connection that has just failed, so a killed sender would take its
// target down (UCX 1.13). The same scheme is built here on UCX's active messages, with the target
// in control: it knows which incarnation of which pair a frame belongs to, checks the frame
// against its segment, and drops all frames of a pair that it has closed.
//
//   kWrite     bytes for the receiver's segment: of one span after the other, which the header
//   lists kFence     answered by kAck once all bytes written before have been copied into place
//   kRead      answered by kReadBytes, in frames
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>

#include "data_link.h"

namespace crossdock {

inline constexpr unsigned kFrameMessageId = 2;

enum class FrameKind : uint8_t { kWrite = 1, kFence = 2, kAck = 3, kRead = 4, kReadBytes = 5 };

struct FrameHeader {
  uint32_t magic = 0;
  FrameKind kind = FrameKind::kWrite;
  uint8_t reserved[3] = {};
  uint64_t sender_epoch = 0;
  uint64_t incarnation = 0;
  uint64_t offset = 0;       // kRead: in the receiver's segment; kReadBytes: in what was read
  uint64_t request = 0;      // kFence, kRead and their answers
  uint64_t count_bytes = 0;  // kFence: written before it; kRead: wanted
};
static_assert(sizeof(FrameHeader) == 48, "it crosses the wire as it lies in memory");

// Of a kWrite these follow its header.
struct FrameSpan {
  uint64_t offset = 0;  // in the receiver's segment
  uint64_t length_bytes = 0;
};
static_assert(sizeof(FrameSpan) == 16, "it crosses the wire as it lies in memory");
// UCX sends the header and up to 15 pieces of memory without copying them first (UCP_MAX_IOV).
inline constexpr size_t kFrameSpansMax = 15;

inline constexpr uint32_t kFrameMagic = 0x46444358;  // "XCDF"

// A frame without its body. As many spans cross the wire as there are.
struct FrameHead {
  FrameHeader header;
  FrameSpan spans[kFrameSpansMax];
  uint32_t num_spans = 0;  // does not cross

  size_t wire_bytes() const { return sizeof header + num_spans * sizeof(FrameSpan); }
  // False when this is no frame of ours.
  bool read(const void* wire, size_t wire_bytes);
};

// Both halves: what we ask of the peer, and what it asks of us.
class FrameLink : public DataLink {
 public:
  FrameLink(ucp_ep_h endpoint, uint64_t epoch, uint64_t incarnation, std::span<std::byte> segment,
            PieceSink& sink)
      : endpoint_(endpoint),
        epoch_(epoch),
        incarnation_(incarnation),
        segment_(segment),
        sink_(sink) {}

  PieceMax piece_max() const override;
  void put(std::span<const CopySpan> spans, uint64_t token, bool bulk) override;
  void get(const CopySpan& span, uint64_t token) override;
  void fence(uint64_t token) override;
  bool pump() override;
  bool can_pump() const override;
  void close() override;
  bool quiet() const override { return num_requests_ == 0; }

  // A frame of this pair has come; called within UCX's progress, so it copies and notes, and sends
  // nothing. False when the peer breaks the rules.
  bool on_frame(const FrameHead& head, std::span<const std::byte> body);

 private:
  struct Posted {
    FrameLink* link = nullptr;
    FrameHead head;
    ucp_dt_iov_t parts[kFrameSpansMax];  // of the body
    uint64_t token = 0;
    bool reports = false;  // the sink hears of it when it is sent
    uint64_t answer_bytes = 0;
  };
  // What the peer will answer.
  struct Asked {
    uint64_t token = 0;
    CopySpan span;  // of a read
    uint64_t received_bytes = 0;
  };
  // What we still have to answer.
  struct Answer {
    uint64_t request = 0;
    uint64_t fence_bytes = 0;  // a fence: how many must have come
    uint64_t offset = 0;       // a read: in our segment
    uint64_t length_bytes = 0;
    uint64_t sent_bytes = 0;
  };

  // Sends posted->head with a body of num_parts of posted->parts.
  void send(std::unique_ptr<Posted> posted, size_t num_parts);
  static void on_sent(void* request, ucs_status_t status, void* user_data);
  void sent(const Posted& posted, ucs_status_t status);
  uint64_t ask(uint64_t token, const CopySpan& span);
  bool on_write(const FrameHead& head, std::span<const std::byte> body);
  bool on_answer(const FrameHeader& header, std::span<const std::byte> body);

  const ucp_ep_h endpoint_;
  const uint64_t epoch_;
  const uint64_t incarnation_;
  const std::span<std::byte> segment_;
  PieceSink& sink_;
  size_t num_requests_ = 0;
  bool closed_ = false;

  uint64_t written_bytes_ = 0;  // by us, into their segment
  uint64_t next_request_ = 1;
  std::map<uint64_t, Asked> asked_;

  uint64_t received_bytes_ = 0;  // by us, into our segment
  std::deque<Answer> acks_;      // fences that have not been answered, oldest first
  std::deque<Answer> reads_;
  uint64_t answer_bytes_in_flight_ = 0;
};

}  // namespace crossdock
