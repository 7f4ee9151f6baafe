#include "ucx_transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "crossdock/sys/shared_memory.h"
#include "spans.h"

namespace crossdock {
namespace {

constexpr size_t kOperationsMax = 16'384;  // outstanding, per peer
constexpr size_t kMessagesMax = 4'096;     // outstanding, per peer
// What UCX locks for a device beside any segment. It fills a queue of 20 MiB at the start and more
// as pairs connect (48 MiB were too little), and tries without end what cannot be registered.
constexpr size_t kDeviceLockedBytes = size_t{96} << 20;
constexpr auto kShutdownMax = std::chrono::seconds(2);

// Of the worker that carries channels, and data that does not go through shared memory.
UcxOptions network_options(const TransportConfig& config, bool rc) {
  // Connections are made over TCP, whatever carries them then, and UCX makes none over a device
  // that it may not use: so tcp is there with rc, too. The end of a process closes its socket at
  // once; a queue pair would have to time out.
  UcxOptions options = {{"TLS", rc ? "rc,tcp,self" : "tcp,self"},
                        {"SOCKADDR_TLS_PRIORITY", "tcp"},
                        // Never from the heap, whose bytes are not zero.
                        {"ALLOC_PRIO", config.huge_pages ? "huge,mmap" : "mmap"}};
  // UCX 1.13 takes the options of devices from the environment alone, and passes over those that
  // ucp_config_modify is given. Frames of 256 KiB move 4.3 GB/s over loopback, its 8 KiB 0.9.
  ::setenv("UCX_TCP_TX_SEG_SIZE", "256k", 1);
  ::setenv("UCX_TCP_RX_SEG_SIZE", "256k", 1);
  // Two of them are UCX's own, and the others what UCP has at most: frames are not copied to be
  // sent, in however many places their bytes lie.
  ::setenv("UCX_TCP_MAX_IOV", "18", 1);
  const std::string& interface = config.bind_interface;
  if (rc) {
    options.emplace_back("NET_DEVICES", config.rdma_device + "," +
                                            (interface.empty() ? up_interfaces() : interface));
    ::setenv("UCX_IB_GID_INDEX", config.gid_index.c_str(), 1);
  } else if (!interface.empty()) {
    options.emplace_back("NET_DEVICES", interface);
  }
  return options;
}

Status unknown_peer(PeerId id) {
  return {StatusCode::kNotFound, "peer " + std::to_string(id) + " is not connected"};
}

}  // namespace

Result<std::unique_ptr<Transport>> create_ucx_transport(const TransportConfig& config,
                                                        uint64_t epoch) {
  return UcxTransport::create(config, epoch);
}

Result<std::unique_ptr<Transport>> UcxTransport::create(const TransportConfig& config,
                                                        uint64_t epoch) {
  const std::string& kind = config.transport;
  if (kind != "auto" && kind != "shm" && kind != "tcp" && kind != "rc") {
    return Status(StatusCode::kInvalidArgument,
                  "transport is \"" + kind + "\", must be one of auto, shm, tcp, rc");
  }
  if (config.segment_bytes == 0 || config.in_flight_bytes_max == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "segment_bytes and in_flight_bytes_max must be at least 1");
  }
  std::unique_ptr<UcxTransport> transport(new UcxTransport(config, epoch));
  Status status = transport->open_workers();
  if (status.ok()) status = transport->open_segment();
  transport->scratch_.reset();
  if (status.ok()) status = transport->open_listener();
  if (status.ok()) status = transport->watch_worker();
  if (!status.ok()) return status;
  transport->fill_fabric();
  return std::unique_ptr<Transport>(std::move(transport));
}

UcxTransport::UcxTransport(const TransportConfig& config, uint64_t epoch) : config_(config) {
  descriptor_.epoch = epoch;
  descriptor_.host_id = host_identity();
  descriptor_.process_id = ::getpid();
  descriptor_.socket_path = "crossdock-" + std::to_string(::getpid()) + "-" + std::to_string(epoch);
  descriptor_.segment_bytes = config.segment_bytes;
}

bool UcxTransport::uses_rc() const {
  if (rc_refused_) return false;
  return config_.transport == "rc" || (config_.transport == "auto" && !config_.rdma_device.empty());
}

// `staged`: memory that could not be registered is to be sent. UCX then copies it through buffers
// that it has registered, rather than try the same again with every message.
Status UcxTransport::open_network(bool staged) {
  UcxOptions options = network_options(config_, uses_rc());
  if (staged) options.emplace_back("ZCOPY_THRESH", "inf");
  network_.reset();
  auto network = UcxWorker::create(UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, options);
  if (!network.ok()) return network.status();
  network_ = std::move(network).value();
  return {};
}

Status UcxTransport::open_workers() {
  const bool automatic = config_.transport == "auto";
  if (uses_rc() && config_.rdma_device.empty()) {
    return {StatusCode::kFailedPrecondition,
            "transport is \"rc\" and rdma_device is empty; `crossdock doctor` lists the ports of "
            "this machine and what keeps them from being used"};
  }
  if (uses_rc() && !may_lock_memory(kDeviceLockedBytes)) {
    const Status little = {StatusCode::kFailedPrecondition,
                           "RDMA needs " + std::to_string(kDeviceLockedBytes >> 20) +
                               " MiB of locked memory beside the segment, and this process may not "
                               "lock as much; raise ulimit -l, or LimitMEMLOCK in a unit"};
    if (!automatic) return little;
    rc_refused_ = true;
    descriptor_.staged = little.message();
  }
  Status network = open_network(false);
  if (!network.ok() || (!automatic && config_.transport != "shm")) return network;
  const Status shared = open_shared_worker();
  if (shared.ok() || !automatic) return shared;
  descriptor_.staged = shared.message();
  return {};
}

// UCX names a segment until all of its pages are there, which takes seconds for a large one, and
// peers reach it without the name. In a directory of ours, what is left by a process that is killed
// meanwhile can be told from what another is making.
Status UcxTransport::open_shared_worker() {
  auto scratch = ScratchDirectory::create(kSharedMemoryDirectory);
  if (!scratch.ok()) return scratch.status();
  scratch_.emplace(std::move(scratch).value());
  // Options of a memory domain, too, come from the environment alone.
  ::setenv("UCX_POSIX_DIR", scratch_->path().c_str(), 1);
  ::setenv("UCX_POSIX_USE_PROC_LINK", "y", 1);
  ::setenv("UCX_POSIX_HUGETLB_MODE", config_.huge_pages ? "try" : "n", 1);
  auto worker =
      UcxWorker::create(UCP_FEATURE_RMA, {{"TLS", "posix,self"}, {"ALLOC_PRIO", "md:posix"}});
  if (!worker.ok()) return worker.status();
  shared_ = std::move(worker).value();
  return {};
}

// The segment is memory that peers reach: shared, and registered with the network. What of that
// cannot be had is done without where there is another way, and `staged` says why.
Status UcxTransport::open_segment() {
  UcxAddress address;
  UcxRemoteKeys keys;
  Status shared = open_shared_memory(address, keys);
  if (!shared.ok() && config_.transport == "shm") return shared;
  if (!shared.ok()) {
    shared_memory_.reset();
    shared_.reset();
    address = {};
    keys = {};
    descriptor_.staged = shared.message();
  }
  Status network = open_network_memory(keys);
  if (!network.ok()) network = stage_network_memory(network);
  if (!network.ok()) return network;
  auto listener = listen_address(config_.bind_interface, config_.listen_port);
  if (!listener.ok()) return listener.status();
  address.listener = std::move(listener).value();
  descriptor_.worker_address = encode(address);
  descriptor_.remote_key = encode(keys);
  descriptor_.segment_address = reinterpret_cast<uint64_t>(network_memory_->data());
  offer_transports();
  return {};
}

Status UcxTransport::open_shared_memory(UcxAddress& address, UcxRemoteKeys& keys) {
  if (shared_ == nullptr) return {};
  auto memory = UcxMemory::allocate(*shared_, config_.segment_bytes, true);
  if (!memory.ok()) return memory.status();
  shared_memory_ = std::move(memory).value();
  auto worker_address = shared_->address();
  if (!worker_address.ok()) return worker_address.status();
  address.shared_memory = std::move(worker_address).value();
  auto key = shared_memory_->remote_key();
  if (!key.ok()) return key.status();
  keys.shared_memory = std::move(key).value();
  return {};
}

Status UcxTransport::open_network_memory(UcxRemoteKeys& keys) {
  auto memory = shared_memory_ != nullptr
                    ? UcxMemory::map(*network_, shared_memory_->data(), shared_memory_->size())
                    : UcxMemory::allocate(*network_, config_.segment_bytes, false);
  if (!memory.ok()) return memory.status();
  auto key = memory.value()->remote_key();
  if (!key.ok()) return key.status();
  network_memory_ = std::move(memory).value();
  keys.network = std::move(key).value();
  return {};
}

// Without a key of ours the peer sends its bytes in frames.
Status UcxTransport::stage_network_memory(const Status& why) {
  if (shared_memory_ != nullptr) {
    network_memory_ = UcxMemory::unregistered(shared_memory_->data(), shared_memory_->size());
  } else {
    auto memory = UcxMemory::plain(config_.segment_bytes);
    if (!memory.ok()) return memory.status();
    network_memory_ = std::move(memory).value();
  }
  if (config_.transport != "shm") descriptor_.staged = why.message();
  return open_network(true);
}

void UcxTransport::offer_transports() {
  std::string& offered = descriptor_.transports;
  if (shared_ != nullptr) offered = "shm";
  if (config_.transport == "shm") return;
  if (uses_rc()) offered += offered.empty() ? "rc" : ",rc";
  if (uses_tcp()) offered += offered.empty() ? "tcp" : ",tcp";
}

Status UcxTransport::set_message_callback(unsigned id, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = callback;
  handler.arg = this;
  return status_of(ucp_worker_set_am_recv_handler(network_->worker(), &handler), "active messages");
}

Status UcxTransport::open_listener() {
  for (const auto& [id, callback] :
       {std::pair(kActiveMessageId, &on_message), std::pair(kFrameMessageId, &on_frame)}) {
    Status set = set_message_callback(id, callback);
    if (!set.ok()) return set;
  }
  UcxAddress address = std::move(decode_ucx_address(descriptor_.worker_address)).value();
  sockaddr_storage storage{};
  std::memcpy(&storage, address.listener.data(), address.listener.size());
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<sockaddr*>(&storage);
  params.sockaddr.addrlen = static_cast<socklen_t>(address.listener.size());
  params.conn_handler.cb = on_connection;
  params.conn_handler.arg = this;
  ucs_status_t status = ucp_listener_create(network_->worker(), &params, &listener_);
  if (status != UCS_OK) {
    return status_of(status, "listening for peers on port " + std::to_string(config_.listen_port) +
                                 " (is it in use?)");
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) return status_of(status, "address of the listener");
  std::memcpy(address.listener.data(), &attributes.sockaddr, address.listener.size());
  descriptor_.worker_address = encode(address);
  return {};
}

Status UcxTransport::watch_worker() {
  epoll_fd_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  timer_fd_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll_fd_.valid() || !timer_fd_.valid()) {
    return {StatusCode::kResourceExhausted,
            std::string("epoll or timerfd: ") + std::strerror(errno) + "; raise ulimit -n"};
  }
  int worker_fd = -1;
  const ucs_status_t status = ucp_worker_get_efd(network_->worker(), &worker_fd);
  if (status != UCS_OK) return status_of(status, "wake-up descriptor of UCX");
  for (const int fd : {worker_fd, timer_fd_.get()}) {
    Status added = add_to_epoll(epoll_fd_.get(), fd);
    if (!added.ok()) return added;
  }
  auto liveness = LivenessListener::create(descriptor_.socket_path, epoll_fd_.get());
  if (!liveness.ok()) return liveness.status();
  liveness_ = std::move(liveness).value();
  return {};
}

void UcxTransport::fill_fabric() {
  fabric_.network = network_.get();
  fabric_.network_memory = network_memory_.get();
  fabric_.shared = shared_.get();
  fabric_.shared_memory = shared_memory_.get();
  fabric_.self = &descriptor_;
  fabric_.config = &config_;
  fabric_.epoll_fd = epoll_fd_.get();
  fabric_.on_error.cb = on_endpoint_error;
  fabric_.on_error.arg = this;
  fabric_.events = &events_;
}

UcxTransport::~UcxTransport() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  for (auto& [id, peer] : peers_) peer->disconnect();
  for (Accepted& accepted : accepted_) close_by_force(accepted.endpoint);
  const auto deadline = Clock::now() + kShutdownMax;
  auto closed = [&] {
    std::erase_if(closes_, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
    bool all = closes_.empty();
    for (auto& [id, peer] : peers_) all &= peer->advance(Clock::now()) || peer->closed();
    return all;
  };
  while (!closed() && Clock::now() < deadline) progress();
  for (auto& [id, peer] : peers_) {
    // What UCX has not let go of within the bound stays allocated: its callbacks may still run.
    if (!peer->closed()) (void)peer.release();
  }
  peers_.clear();
  network_memory_.reset();
  shared_memory_.reset();
}

std::span<std::byte> UcxTransport::segment() {
  return {network_memory_->data(), network_memory_->size()};
}

// ---- operations --------------------------------------------------------------------------------

Status UcxTransport::post(Operation operation) {
  if (auto* connect_operation = std::get_if<Connect>(&operation)) {
    return connect(*connect_operation);
  }
  if (auto* disconnect = std::get_if<Disconnect>(&operation)) {
    const auto found = peers_.find(disconnect->peer);
    if (found == peers_.end()) return unknown_peer(disconnect->peer);
    found->second->disconnect();
    return {};
  }
  if (auto* write = std::get_if<WriteSpans>(&operation)) return post_transfer(*write);
  if (auto* read = std::get_if<ReadSpans>(&operation)) return post_transfer(*read);
  if (auto* fence = std::get_if<Fence>(&operation)) return post_fence(*fence);
  return post_notify(std::get<Notify>(operation));
}

Status UcxTransport::connect(const Connect& connect) {
  if (peers_.contains(connect.peer)) {
    return {StatusCode::kAlreadyExists,
            "peer " + std::to_string(connect.peer) + " exists; ids are never reused"};
  }
  if (connect.remote.epoch == descriptor_.epoch) {
    return {StatusCode::kInvalidArgument, "the peer's epoch equals our own"};
  }
  if (find_peer(connect.remote.epoch, connect.incarnation) != nullptr) {
    return {StatusCode::kAlreadyExists, "this incarnation of the pair is connected already"};
  }
  auto peer = UcxPeer::create(fabric_, connect, Clock::now());
  if (!peer.ok()) return peer.status();
  UcxPeer& added = *peers_.emplace(connect.peer, std::move(peer).value()).first->second;
  claim(added);
  return {};
}

Result<UcxPeer*> UcxTransport::ready_peer(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return unknown_peer(id);
  if (found->second->ready()) return found->second.get();
  if (found->second->broken()) {
    return Status(StatusCode::kUnavailable, "the connection to the peer is broken or closed");
  }
  return Status(StatusCode::kFailedPrecondition, "the peer is not ready yet");
}

template <typename Transfer>
Status UcxTransport::post_transfer(const Transfer& transfer) {
  auto peer = ready_peer(transfer.peer);
  if (!peer.ok()) return peer.status();
  UcxPeer& to = *peer.value();
  Status spans = check_spans(transfer.spans, config_.segment_bytes, to.remote_segment_bytes());
  if (!spans.ok()) return spans;
  if (to.data().num_outstanding() >= kOperationsMax) {
    return {StatusCode::kResourceExhausted, "too many operations are outstanding to the peer"};
  }
  if constexpr (std::is_same_v<Transfer, WriteSpans>) {
    to.data().post_write(transfer);
  } else {
    to.data().post_read(transfer);
  }
  return {};
}

Status UcxTransport::post_fence(const Fence& fence) {
  auto peer = ready_peer(fence.peer);
  if (!peer.ok()) return peer.status();
  if (peer.value()->data().num_outstanding() >= kOperationsMax) {
    return {StatusCode::kResourceExhausted, "too many operations are outstanding to the peer"};
  }
  peer.value()->data().post_fence(fence);
  return {};
}

Status UcxTransport::post_notify(const Notify& notify) {
  if (notify.message.size() > kMessageBytesMax) {
    return {StatusCode::kInvalidArgument, "message has " + std::to_string(notify.message.size()) +
                                              " bytes, at most " +
                                              std::to_string(kMessageBytesMax) + " are allowed"};
  }
  auto peer = ready_peer(notify.peer);
  if (!peer.ok()) return peer.status();
  if (peer.value()->num_messages_outstanding() >= kMessagesMax) {
    return {StatusCode::kResourceExhausted, "too many messages are outstanding to the peer"};
  }
  peer.value()->notify(notify.message);
  return {};
}

}  // namespace crossdock
