#include "ucx_peer.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace crossdock {
namespace {

// A connection breaks a moment before the kernel reports that the process behind it has ended;
// the event waits this long, so that it can say so.
constexpr auto kProcessEndGrace = std::chrono::milliseconds(100);
// UCX keeps the order of eager messages on one lane, so more than a few early ones mean that the
// peer leaves numbers out.
constexpr size_t kEarlyMessagesMax = 1024;

bool offers(const std::string& transports, TransportKind kind) {
  const std::string padded = "," + transports + ",";
  return padded.find("," + std::string(name(kind)) + ",") != std::string::npos;
}

bool offered_by_both(const UcxFabric& fabric, const EndpointDescriptor& remote,
                     TransportKind kind) {
  return offers(fabric.self->transports, kind) && offers(remote.transports, kind);
}

}  // namespace

Result<std::unique_ptr<UcxPeer>> UcxPeer::create(UcxFabric& fabric, const Connect& connect,
                                                 Clock::time_point now) {
  auto address = decode_ucx_address(connect.remote.worker_address);
  if (!address.ok()) return address.status();
  auto keys = decode_ucx_remote_keys(connect.remote.remote_key);
  if (!keys.ok()) return keys.status();
  std::unique_ptr<UcxPeer> peer(
      new UcxPeer(fabric, connect, std::move(address).value(), std::move(keys).value()));
  peer->handshake_deadline_ = now + std::chrono::milliseconds(fabric.config->handshake_timeout_ms);
  Status watched = peer->watch_process();
  if (!watched.ok()) return watched;
  peer->shared_memory_ = peer->try_shared_memory();
  if (peer->shared_key_ == nullptr && !peer->network_offered_) {
    return Status(StatusCode::kFailedPrecondition, "no common transport: this side offers \"" +
                                                       fabric.self->transports + "\", the peer \"" +
                                                       connect.remote.transports + "\"; " +
                                                       std::string(describe(peer->shared_memory_)));
  }
  if (peer->is_caller()) {
    auto endpoint = peer->call();
    if (!endpoint.ok()) return endpoint.status();
    peer->channel_endpoint_ = endpoint.value();
    peer->channel_.send(peer->channel_endpoint_, MessageKind::kHello, peer->shared_key_ != nullptr,
                        {});
  }
  return peer;
}

UcxPeer::UcxPeer(UcxFabric& fabric, const Connect& connect, UcxAddress address, UcxRemoteKeys keys)
    : fabric_(fabric),
      id_(connect.peer),
      incarnation_(connect.incarnation),
      remote_(connect.remote),
      address_(std::move(address)),
      keys_(std::move(keys)),
      channel_(fabric.self->epoch, connect.incarnation),
      data_path_(fabric.config->in_flight_bytes_max, *fabric.events) {
  for (const TransportKind kind : {TransportKind::kRc, TransportKind::kTcp}) {
    if (network_offered_ || !offered_by_both(fabric, remote_, kind)) continue;
    network_kind_ = kind;
    network_offered_ = true;
  }
}

UcxPeer::~UcxPeer() {
  if (shared_key_ != nullptr) ucp_rkey_destroy(shared_key_);
  if (data_key_ != nullptr) ucp_rkey_destroy(data_key_);
  // Only where create() failed; otherwise everything was closed before.
  if (shared_endpoint_ != nullptr) {
    ucp_request_param_t param{};
    void* request = ucp_ep_close_nbx(shared_endpoint_, &param);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
}

Result<ucp_ep_h> UcxPeer::call() {
  sockaddr_storage listener{};
  std::memcpy(&listener, address_.listener.data(), address_.listener.size());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<sockaddr*>(&listener);
  params.sockaddr.addrlen = static_cast<socklen_t>(address_.listener.size());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = fabric_.on_error;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(fabric_.network->worker(), &params, &endpoint);
  if (status != UCS_OK) return status_of(status, "connecting to the peer's listener");
  return endpoint;
}

// On one host the peer's process is watched, whatever the transport. An error when it has ended.
Status UcxPeer::watch_process() {
  if (remote_.host_id != fabric_.self->host_id) return {};
  auto watch = ProcessWatch::create(remote_.socket_path, remote_.process_id, fabric_.epoll_fd);
  if (watch.ok()) {
    watch_ = std::move(watch).value();
  } else if (watch.status().code() == StatusCode::kNotFound) {
    return {StatusCode::kUnavailable, "the peer's process has ended: " + watch.status().message()};
  }
  return {};
}

// Whoever writes into shared memory cannot be stopped by closing anything, so it is used only where
// the end of the peer's process can be seen.
SharedMemory UcxPeer::try_shared_memory() {
  if (remote_.host_id != fabric_.self->host_id) return SharedMemory::kOtherHost;
  if (watch_ == nullptr) return SharedMemory::kProcessUnseen;
  if (fabric_.shared == nullptr || address_.shared_memory.empty() || keys_.shared_memory.empty() ||
      !offered_by_both(fabric_, remote_, TransportKind::kSharedMemory)) {
    return SharedMemory::kNotOffered;
  }
  return map_shared_memory().ok() ? SharedMemory::kUsed : SharedMemory::kNotMapped;
}

// The worker of shared memory has no other transport, so that this either works or fails: data can
// never go another way unnoticed. A mapped key has a local address of the peer's segment.
Status UcxPeer::map_shared_memory() {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address_.shared_memory.data());
  ucs_status_t status = ucp_ep_create(fabric_.shared->worker(), &params, &shared_endpoint_);
  if (status != UCS_OK) return status_of(status, "shared-memory endpoint");
  ucp_rkey_h key = nullptr;
  status = ucp_ep_rkey_unpack(shared_endpoint_, keys_.shared_memory.data(), &key);
  if (status != UCS_OK) return status_of(status, "mapping the peer's segment");
  void* mapped = nullptr;
  status = ucp_rkey_ptr(key, remote_.segment_address, &mapped);
  if (status != UCS_OK) {
    ucp_rkey_destroy(key);
    return status_of(status, "mapping the peer's segment");
  }
  shared_key_ = key;
  shared_mapping_ = static_cast<std::byte*>(mapped);
  return {};
}

bool UcxPeer::owns(ucp_ep_h endpoint) const {
  return endpoint != nullptr && (endpoint == channel_endpoint_ || endpoint == data_endpoint_);
}

bool UcxPeer::accepts(MessageKind kind) const {
  if (broken() || is_caller()) return false;
  if (kind == MessageKind::kHello) return channel_endpoint_ == nullptr;
  // The caller may have read our hello and called again before we looked at anything else.
  return kind == MessageKind::kData && channel_endpoint_ != nullptr && data_endpoint_ == nullptr;
}

void UcxPeer::adopt(ucp_ep_h endpoint, const InboundMessage& hello) {
  assert(accepts(hello.header.kind));
  if (hello.header.kind == MessageKind::kData) {
    data_endpoint_ = endpoint;
    begin_wiring();
    return;
  }
  channel_endpoint_ = endpoint;
  channel_.send(channel_endpoint_, MessageKind::kHello, shared_key_ != nullptr, {});
  on_message(hello);
}

void UcxPeer::on_message(InboundMessage message) {
  if (broken()) return;
  const uint64_t sequence = message.header.sequence;
  if (sequence < next_sequence_in_ || early_messages_.size() >= kEarlyMessagesMax) {
    break_pair({StatusCode::kInternal, "the peer's messages are not numbered in order"},
               Clock::now());
    return;
  }
  early_messages_.emplace(sequence, std::move(message));
  for (auto next = early_messages_.find(next_sequence_in_);
       next != early_messages_.end() && !broken(); next = early_messages_.find(next_sequence_in_)) {
    const InboundMessage in_order = std::move(next->second);
    early_messages_.erase(next);
    ++next_sequence_in_;
    handle_in_order(in_order);
  }
}

void UcxPeer::handle_in_order(const InboundMessage& message) {
  switch (message.header.kind) {
    case MessageKind::kHello:
      if (transport_chosen_) break;
      if (shared_key_ != nullptr && message.header.shared_memory_works != 0) {
        transport_ = TransportKind::kSharedMemory;
      } else {
        transport_ = network_kind_;
        if (shared_key_ != nullptr) shared_memory_ = SharedMemory::kNotMappedByPeer;
      }
      choose_transport();
      break;
    case MessageKind::kProbed:
      // Ready at once, so that a message right behind this one finds the peer ready.
      probed_received_ = true;
      if (probed_sent_) become_ready();
      break;
    case MessageKind::kMessage:
      fabric_.events->emplace_back(MessageArrived{id_, message.body});
      break;
    case MessageKind::kData: break;
  }
}

void UcxPeer::choose_transport() {
  transport_chosen_ = true;
  if (transport_ == TransportKind::kSharedMemory) {
    open_data_path();
    return;
  }
  if (!network_offered_) {
    break_pair(
        {StatusCode::kFailedPrecondition, std::string(describe(shared_memory_)) +
                                              ", and no other transport is offered by both sides"},
        Clock::now());
    return;
  }
  if (!is_caller()) return;
  auto endpoint = call();
  if (!endpoint.ok()) {
    break_pair(endpoint.status(), Clock::now());
    return;
  }
  data_endpoint_ = endpoint.value();
  channel_.send_data_hello(data_endpoint_);
  begin_wiring();
}

// The key can be unpacked only once the endpoint knows its lanes.
void UcxPeer::begin_wiring() {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_wired;
  param.user_data = this;
  wire_ = Wire::kFlushing;
  void* request = ucp_ep_flush_nbx(data_endpoint_, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  wire_ = Wire::kFlushed;
  wire_status_ = status_of(UCS_PTR_STATUS(request), "wiring the data endpoint");
}

void UcxPeer::on_wired(void* request, ucs_status_t status, void* user_data) {
  auto* peer = static_cast<UcxPeer*>(user_data);
  ucp_request_free(request);
  peer->wire_ = Wire::kFlushed;
  peer->wire_status_ = status_of(status, "wiring the data endpoint");
}

Status UcxPeer::open_link() {
  const std::span<std::byte> segment(fabric_.network_memory->data(),
                                     fabric_.network_memory->size());
  if (sends_frames()) {
    frame_link_ = std::make_unique<FrameLink>(data_endpoint_, fabric_.self->epoch, incarnation_,
                                              segment, data_path_);
    data_path_.open(*frame_link_);
    for (const FrameHead& fence : early_fences_) frame_link_->on_frame(fence, {});
    early_fences_.clear();
    return {};
  }
  if (transport_ == TransportKind::kSharedMemory) {
    other_link_ = std::make_unique<SharedMemoryLink>(segment.data(), shared_mapping_, data_path_);
  } else {
    const ucs_status_t status =
        ucp_ep_rkey_unpack(data_endpoint_, keys_.network.data(), &data_key_);
    if (status != UCS_OK) return status_of(status, "key of the peer's segment");
    rc_lane_missing_ = !writes_by_rc(data_endpoint_);
    other_link_ = std::make_unique<RdmaLink>(
        RdmaLink::Target{data_endpoint_, data_key_, fabric_.network_memory->handle(),
                         segment.data(), remote_.segment_address},
        data_path_);
  }
  data_path_.open(*other_link_);
  return {};
}

void UcxPeer::open_data_path() {
  Status opened = open_link();
  if (!opened.ok()) return break_pair(opened, Clock::now());
  data_path_.post_probe();
  probe_posted_ = true;
}

DataLink* UcxPeer::link() const {
  return frame_link_ != nullptr ? frame_link_.get() : other_link_.get();
}

bool UcxPeer::can_pump() const {
  return (link() != nullptr && link()->can_pump()) || data_path_.can_pump();
}

size_t UcxPeer::pump() {
  if (link() != nullptr && link()->pump()) return 1;
  return data_path_.pump();
}

// A frame that comes before our own end is open cannot be: the peer posts nothing before it has
// our `probed`, except the fence of its probe, which waits in early_fences_.
void UcxPeer::on_frame(const FrameHead& head, std::span<const std::byte> body) {
  if (broken()) return;
  if (frame_link_ == nullptr) {
    const bool fence = head.header.kind == FrameKind::kFence && early_fences_.empty();
    if (fence) early_fences_.push_back(head);
    bad_frame_ |= !fence;
    return;
  }
  bad_frame_ |= !frame_link_->on_frame(head, body);
}

void UcxPeer::advance_handshake(Clock::time_point now) {
  if (!channel_.failure().ok()) return break_pair(channel_.failure(), now);
  if (wire_ == Wire::kFlushed && !probe_posted_) {
    if (!wire_status_.ok()) return break_pair(wire_status_, now);
    open_data_path();
    if (broken()) return;
  }
  const auto& probe = data_path_.probe_status();
  if (probe && !probe->ok()) return break_pair(*probe, now);
  if (probe && !probed_sent_) {
    probed_sent_ = true;
    channel_.send(channel_endpoint_, MessageKind::kProbed, false, {});
  }
  if (probed_sent_ && probed_received_) {
    become_ready();
  } else if (now >= handshake_deadline_) {
    break_pair(
        {StatusCode::kDeadlineExceeded, "the peer did not complete the handshake within " +
                                            std::to_string(fabric_.config->handshake_timeout_ms) +
                                            " ms; is it running, and was it told to connect?"},
        now);
  }
}

void UcxPeer::become_ready() {
  phase_ = Phase::kReady;
  fabric_.events->emplace_back(PeerReady{id_, transport_, shared_memory_, staged()});
}

bool UcxPeer::sends_frames() const {
  if (transport_ != TransportKind::kRc) return transport_ == TransportKind::kTcp;
  return keys_.network.empty() || fabric_.network_memory->handle() == nullptr;
}

std::string UcxPeer::staged() const {
  if (transport_ == TransportKind::kSharedMemory) return {};
  if (rc_lane_missing_) return "here: UCX took another transport than rc for one-sided operations";
  if (!fabric_.self->staged.empty()) return "here: " + fabric_.self->staged;
  return remote_.staged.empty() ? std::string() : "at the peer: " + remote_.staged;
}

void UcxPeer::notify(std::span<const std::byte> message) {
  channel_.send(channel_endpoint_, MessageKind::kMessage, false, message);
}

void UcxPeer::on_endpoint_error(const Status& status) { break_pair(status, Clock::now()); }

void UcxPeer::check_process() {
  if (watch_ == nullptr || !watch_->gone()) return;
  if (phase_ < Phase::kBroken) {
    break_pair({StatusCode::kUnavailable, "the peer's process has ended"}, Clock::now());
  }
}

void UcxPeer::break_pair(const Status& status, Clock::time_point now) {
  if (broken()) return;
  phase_ = Phase::kBroken;
  break_status_ = status;
  break_report_at_ = watch_ == nullptr ? now : now + kProcessEndGrace;
  data_path_.stop({StatusCode::kUnavailable, "the peer's connection broke: " + status.message()});
  close_endpoints();
}

void UcxPeer::disconnect() {
  if (phase_ >= Phase::kClosing) return;
  phase_ = Phase::kClosing;
  break_status_.reset();
  data_path_.stop({StatusCode::kCancelled, "the peer was disconnected"});
  close_endpoints();
}

void UcxPeer::close_endpoints() {
  close_by_force(channel_endpoint_);
  close_by_force(data_endpoint_);
  if (transport_ == TransportKind::kRc) await_discard();
  if (shared_endpoint_ == nullptr) return;
  // Without UCX's peer-error mode there is no close by force; there is also nothing to wait for.
  ucp_request_param_t param{};
  void* request = ucp_ep_close_nbx(shared_endpoint_, &param);
  if (UCS_PTR_IS_PTR(request)) shared_close_ = request;
  shared_endpoint_ = nullptr;
}

void UcxPeer::close_by_force(ucp_ep_h& endpoint) {
  if (endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) force_closes_.push_back(request);
  endpoint = nullptr;
}

// A forced close is done before its queue pair is: UCX flushes and destroys the lane behind it, and
// until then the peer's writes still land. A flush of the worker waits for that.
void UcxPeer::await_discard() {
  ucp_request_param_t param{};
  void* request = ucp_worker_flush_nbx(fabric_.network->worker(), &param);
  if (UCS_PTR_IS_PTR(request)) force_closes_.push_back(request);
}

bool UcxPeer::closes_done() {
  auto done = [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  };
  std::erase_if(force_closes_, done);
  if (shared_close_ != nullptr && done(shared_close_)) shared_close_ = nullptr;
  return force_closes_.empty() && shared_close_ == nullptr &&
         (link() == nullptr || link()->quiet()) && channel_.num_outstanding() == 0 &&
         wire_ != Wire::kFlushing;
}

bool UcxPeer::writes_stopped() {
  if (transport_ != TransportKind::kSharedMemory || their_side_closed_) return true;
  return watch_ != nullptr && watch_->gone();
}

bool UcxPeer::advance(Clock::time_point now) {
  if (bad_frame_) {
    break_pair({StatusCode::kInternal, "the peer's frames leave our segment or were not asked for"},
               now);
  }
  if (phase_ == Phase::kHandshake) advance_handshake(now);
  if (phase_ == Phase::kReady && !channel_.failure().ok()) break_pair(channel_.failure(), now);
  if (phase_ < Phase::kBroken) return false;
  const bool closed = closes_done();
  if (break_status_) {
    const bool gone = watch_ != nullptr && watch_->gone();
    if (gone || now >= break_report_at_) {
      fabric_.events->emplace_back(PeerBroken{id_, *break_status_, gone});
      break_status_.reset();
    }
  }
  if (phase_ < Phase::kClosing || !closed) return false;
  if (!closed_reported_) {
    if (shared_key_ != nullptr) ucp_rkey_destroy(shared_key_);
    if (data_key_ != nullptr) ucp_rkey_destroy(data_key_);
    shared_key_ = data_key_ = nullptr;
    if (watch_ != nullptr) watch_->send({fabric_.self->epoch, incarnation_});
    phase_ = Phase::kAwaitingProof;
    closed_reported_ = true;
    const bool stopped = writes_stopped();
    fabric_.events->emplace_back(PeerClosed{id_, stopped});
    return stopped;
  }
  if (!writes_stopped()) return false;
  fabric_.events->emplace_back(PeerClosed{id_, true});
  return true;
}

Clock::time_point UcxPeer::deadline() const {
  if (phase_ == Phase::kHandshake) return handshake_deadline_;
  return break_status_ ? break_report_at_ : Clock::time_point::max();
}

}  // namespace crossdock
