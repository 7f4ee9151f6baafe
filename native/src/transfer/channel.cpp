#include "channel.h"

#include <cstring>
#include <memory>

#include "ucx_worker.h"

namespace crossdock {

void Channel::send(ucp_ep_h endpoint, MessageKind kind, bool shared_memory_works,
                   std::span<const std::byte> body) {
  MessageHeader header;
  header.kind = kind;
  header.shared_memory_works = shared_memory_works ? 1 : 0;
  header.sequence = next_sequence_++;
  post(endpoint, header, body);
}

void Channel::send_data_hello(ucp_ep_h endpoint) {
  MessageHeader header;
  header.kind = MessageKind::kData;
  post(endpoint, header, {});
}

void Channel::post(ucp_ep_h endpoint, const MessageHeader& header,
                   std::span<const std::byte> body) {
  auto sent = std::make_unique<Sent>();
  sent->channel = this;
  sent->header = header;
  sent->header.magic = kMessageMagic;
  sent->header.sender_epoch = epoch_;
  sent->header.incarnation = incarnation_;
  sent->body.assign(body.begin(), body.end());
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // Eager, so that a message arrives whole; with a reply endpoint, so that the receiver of a hello
  // learns which of the connections it accepted this is.
  param.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = on_sent;
  param.user_data = sent.get();
  ++num_outstanding_;
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, kActiveMessageId, &sent->header, sizeof sent->header,
                      sent->body.data(), sent->body.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    (void)sent.release();  // on_sent deletes it
  } else {
    finish(UCS_PTR_STATUS(request));
  }
}

void Channel::on_sent(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<Sent> sent(static_cast<Sent*>(user_data));
  ucp_request_free(request);
  sent->channel->finish(status);
}

void Channel::finish(ucs_status_t status) {
  --num_outstanding_;
  if (status != UCS_OK && failure_.ok()) failure_ = status_of(status, "message to the peer");
}

bool parse_message(std::span<const std::byte> header, std::span<const std::byte> body,
                   const ucp_am_recv_param_t& param, InboundMessage& message) {
  if (header.size() != sizeof(MessageHeader) || body.size() > kMessageBytesMax) return false;
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return false;
  std::memcpy(&message.header, header.data(), sizeof message.header);
  if (message.header.magic != kMessageMagic) return false;
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
    message.reply_endpoint = param.reply_ep;
  }
  message.body.assign(body.begin(), body.end());
  return true;
}

}  // namespace crossdock
