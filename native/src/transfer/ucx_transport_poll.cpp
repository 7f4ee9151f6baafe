// The half of UcxTransport that makes progress: UCX's callbacks only note what happened, poll acts
// on it. Nothing is closed inside a callback.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ucx_transport.h"

namespace crossdock {
namespace {

// Progress calls in one poll, so that a stream of incoming data cannot starve the rest.
constexpr int kProgressMax = 64;
// Bytes copied in one poll over shared memory: messages wait for no more than this (1 ms).
constexpr uint64_t kPumpBytesMax = 8u << 20;
// Polls between two looks at sockets and pidfds while UCX keeps the thread busy.
constexpr uint64_t kPollsBetweenLooks = 64;
constexpr size_t kUnclaimedMax = 64;  // connections whose pair is not known yet
constexpr auto kUnclaimedAge = std::chrono::seconds(20);

}  // namespace

// ---- callbacks ---------------------------------------------------------------------------------

void UcxTransport::on_connection(ucp_conn_request_h request, void* user_data) {
  auto* self = static_cast<UcxTransport*>(user_data);
  if (self->accepted_.size() >= kUnclaimedMax) {
    ucp_listener_reject(self->listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.conn_request = request;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = self->fabric_.on_error;
  Accepted accepted;
  if (ucp_ep_create(self->network_->worker(), &params, &accepted.endpoint) != UCS_OK) return;
  accepted.deadline = Clock::now() + kUnclaimedAge;
  self->accepted_.push_back(std::move(accepted));
}

void UcxTransport::on_endpoint_error(void* user_data, ucp_ep_h endpoint, ucs_status_t status) {
  static_cast<UcxTransport*>(user_data)->failed_endpoints_.emplace_back(endpoint, status);
}

ucs_status_t UcxTransport::on_message(void* user_data, const void* header, size_t header_bytes,
                                      void* body, size_t body_bytes,
                                      const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxTransport*>(user_data);
  InboundMessage message;
  if (parse_message({static_cast<const std::byte*>(header), header_bytes},
                    {static_cast<const std::byte*>(body), body_bytes}, *param, message)) {
    self->inbound_.push_back(std::move(message));
  } else {
    ++self->num_dropped_messages_;
  }
  return UCS_OK;
}

ucs_status_t UcxTransport::on_frame(void* user_data, const void* header, size_t header_bytes,
                                    void* body, size_t body_bytes,
                                    const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxTransport*>(user_data);
  FrameHead head;
  UcxPeer* peer = nullptr;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && head.read(header, header_bytes)) {
    peer = self->find_peer(head.header.sender_epoch, head.header.incarnation);
  }
  if (peer != nullptr) {
    peer->on_frame(head, {static_cast<const std::byte*>(body), body_bytes});
  } else {
    ++self->num_dropped_messages_;
  }
  return UCS_OK;
}

// ---- poll --------------------------------------------------------------------------------------

bool UcxTransport::poll(std::vector<TransferEvent>& events) {
  bool busy = progress();
  handle_failed_endpoints();
  handle_inbound();
  pump();
  busy |= !events_.empty();
  if (!busy || ++num_polls_ % kPollsBetweenLooks == 0) handle_liveness();
  const auto now = Clock::now();
  std::erase_if(peers_, [&](auto& entry) { return entry.second->advance(now); });
  drop_unclaimed(now);
  busy |= !events_.empty();
  std::move(events_.begin(), events_.end(), std::back_inserter(events));
  events_.clear();
  return busy;
}

bool UcxTransport::progress() {
  bool any = shared_ != nullptr && shared_->progress();
  for (int i = 0; i < kProgressMax && network_->progress(); ++i) any = true;
  return any;
}

void UcxTransport::handle_failed_endpoints() {
  const auto failed = std::exchange(failed_endpoints_, {});
  for (const auto& [endpoint, status] : failed) {
    const auto accepted = std::find_if(accepted_.begin(), accepted_.end(), [&](const auto& entry) {
      return entry.endpoint == endpoint;
    });
    if (accepted != accepted_.end()) {
      accepted_.erase(accepted);
      close_by_force(endpoint);
      continue;
    }
    for (auto& [id, peer] : peers_) {
      if (peer->owns(endpoint)) {
        peer->on_endpoint_error(status_of(status, "connection to the peer"));
        break;
      }
    }
  }
}

void UcxTransport::handle_inbound() {
  auto inbound = std::exchange(inbound_, {});
  for (InboundMessage& message : inbound) {
    const auto accepted = std::find_if(accepted_.begin(), accepted_.end(), [&](const auto& entry) {
      return entry.endpoint == message.reply_endpoint && !entry.introduced;
    });
    UcxPeer* peer = find_peer(message.header.sender_epoch, message.header.incarnation);
    if (accepted != accepted_.end()) {
      accepted->introduced = true;
      accepted->hello = std::move(message);
      if (peer != nullptr) claim(*peer);
    } else if (peer != nullptr && peer->owns(message.reply_endpoint)) {
      peer->on_message(std::move(message));
    } else {
      // Of an incarnation that is over, or that was never ours.
      ++num_dropped_messages_;
    }
  }
}

// Gives the peer the connections whose hello named it.
void UcxTransport::claim(UcxPeer& peer) {
  std::erase_if(accepted_, [&](Accepted& accepted) {
    const MessageHeader& header = accepted.hello.header;
    if (!accepted.introduced || header.sender_epoch != peer.epoch() ||
        header.incarnation != peer.incarnation()) {
      return false;
    }
    if (!peer.accepts(header.kind)) {
      close_by_force(accepted.endpoint);
      return true;
    }
    peer.adopt(accepted.endpoint, accepted.hello);
    return true;
  });
}

void UcxTransport::drop_unclaimed(Clock::time_point now) {
  std::erase_if(accepted_, [&](const Accepted& accepted) {
    if (now < accepted.deadline) return false;
    close_by_force(accepted.endpoint);
    return true;
  });
  std::erase_if(closes_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

void UcxTransport::handle_liveness() {
  epoll_event ready[8];
  const int num_ready = ::epoll_wait(epoll_fd_.get(), ready, 8, 0);
  if (num_ready <= 0) return;
  uint64_t expirations = 0;
  (void)!::read(timer_fd_.get(), &expirations, sizeof expirations);
  for (const auto& [notice, sender] : liveness_->poll()) {
    UcxPeer* peer = find_peer(notice.epoch, notice.incarnation);
    if (peer != nullptr) peer->on_closed_notice(sender);
  }
  for (auto& [id, peer] : peers_) peer->check_process();
}

// One piece a peer, round after round, until nothing more can be posted or the bytes of this poll
// are used up. The next poll goes on behind the peer that was served last.
void UcxTransport::pump() {
  uint64_t pumped = 0;
  for (bool any = true; any && pumped < kPumpBytesMax;) {
    any = false;
    auto next = peers_.upper_bound(last_pumped_);
    for (size_t i = 0; i < peers_.size() && pumped < kPumpBytesMax; ++i, ++next) {
      if (next == peers_.end()) next = peers_.begin();
      const size_t bytes = next->second->pump();
      if (bytes == 0) continue;
      pumped += bytes;
      any = true;
      last_pumped_ = next->first;
    }
  }
}

bool UcxTransport::arm() {
  if (!events_.empty() || !inbound_.empty() || !failed_endpoints_.empty()) return false;
  auto deadline = Clock::time_point::max();
  for (const auto& [id, peer] : peers_) {
    if (peer->can_pump() || peer->needs_shared_progress()) return false;
    deadline = std::min(deadline, peer->deadline());
  }
  for (const Accepted& accepted : accepted_) deadline = std::min(deadline, accepted.deadline);
  if (ucp_worker_arm(network_->worker()) != UCS_OK) return false;
  set_timer(deadline);
  return true;
}

void UcxTransport::set_timer(Clock::time_point deadline) {
  if (deadline == timer_deadline_) return;
  timer_deadline_ = deadline;
  itimerspec timer{};
  if (deadline != Clock::time_point::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    const int64_t left_ns = std::max<int64_t>(1, left.count());
    timer.it_value.tv_sec = left_ns / 1'000'000'000;
    timer.it_value.tv_nsec = left_ns % 1'000'000'000;
  }
  ::timerfd_settime(timer_fd_.get(), 0, &timer, nullptr);
}

UcxPeer* UcxTransport::find_peer(uint64_t epoch, uint64_t incarnation) {
  for (auto& [id, peer] : peers_) {
    if (peer->epoch() == epoch && peer->incarnation() == incarnation) return peer.get();
  }
  return nullptr;
}

void UcxTransport::close_by_force(ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closes_.push_back(request);
}

}  // namespace crossdock
