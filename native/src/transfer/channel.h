// Active messages: their header, and the sending side of one endpoint.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

inline constexpr unsigned kActiveMessageId = 1;
// A grant of 65,536 blocks is a quarter of this.
inline constexpr size_t kMessageBytesMax = 1u << 20;

enum class MessageKind : uint8_t {
  kHello = 1,   // first on the channel, in each direction
  kData = 2,    // first on the data endpoint, from the side that connected it
  kProbed = 3,  // the sender has read a byte of the receiver's segment
  kMessage = 4,
};

// Travels in front of every message. A pair is named by its incarnation and by who sends.
struct MessageHeader {
  uint32_t magic = 0;
  MessageKind kind = MessageKind::kMessage;
  uint8_t shared_memory_works = 0;  // of a hello: the sender has mapped the receiver's segment
  uint16_t reserved = 0;
  uint64_t sender_epoch = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;  // on the channel, from 0: UCX promises no order
};
static_assert(sizeof(MessageHeader) == 32, "it crosses the wire as it lies in memory");
inline constexpr uint32_t kMessageMagic = 0x4b444358;  // "XCDK"

// One arrived message, as the worker's callback keeps it until the transport looks.
struct InboundMessage {
  MessageHeader header;
  ucp_ep_h reply_endpoint = nullptr;
  std::vector<std::byte> body;
};

// Sends on one endpoint, which it does not own.
class Channel {
 public:
  Channel(uint64_t epoch, uint64_t incarnation) : epoch_(epoch), incarnation_(incarnation) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Numbered, in the channel's order. The first failure is kept in `failure`.
  void send(ucp_ep_h endpoint, MessageKind kind, bool shared_memory_works,
            std::span<const std::byte> body);
  // The one message that a data endpoint carries; outside the channel's numbering.
  void send_data_hello(ucp_ep_h endpoint);

  size_t num_outstanding() const { return num_outstanding_; }
  const Status& failure() const { return failure_; }

 private:
  struct Sent {
    Channel* channel = nullptr;
    MessageHeader header;
    std::vector<std::byte> body;
  };
  void post(ucp_ep_h endpoint, const MessageHeader& header, std::span<const std::byte> body);
  static void on_sent(void* request, ucs_status_t status, void* user_data);
  void finish(ucs_status_t status);

  const uint64_t epoch_;
  const uint64_t incarnation_;
  uint64_t next_sequence_ = 0;
  size_t num_outstanding_ = 0;
  Status failure_;
};

// Reads what UCX hands to an active-message callback. False when it is none of ours.
bool parse_message(std::span<const std::byte> header, std::span<const std::byte> body,
                   const ucp_am_recv_param_t& param, InboundMessage& message);

}  // namespace crossdock
