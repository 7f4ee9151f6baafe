// Theory of operation. Every transport has an inbox in the hub, a list of events with a lock and an
// eventfd. A peer is a pair of (transport, peer id) that name each other by epoch and incarnation;
// it is ready when both sides have connected. Operations take effect when they are posted and are
// reported by the next poll.
#include "crossdock/transfer/loopback.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "crossdock/sys/process.h"
#include "crossdock/sys/shared_memory.h"
#include "spans.h"

namespace crossdock {
namespace {

struct Side {
  uint64_t remote_epoch = 0;
  uint64_t incarnation = 0;
  bool ready = false;
  bool broken = false;
};

struct Node {
  explicit Node(uint64_t bytes, EventFd fd) : segment(bytes), event(std::move(fd)) {}
  std::vector<std::byte> segment;
  EventFd event;
  std::vector<TransferEvent> inbox;
  std::map<PeerId, Side> peers;

  void deliver(TransferEvent happened) {
    inbox.push_back(std::move(happened));
    event.signal();
  }
};

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

// Everything in it is guarded by the mutex. Copies happen under it too, so that they are ordered
// with the messages that announce them.
struct LoopbackHub::State {
  std::mutex mutex;
  std::map<uint64_t, std::unique_ptr<Node>> nodes;  // by epoch

  Node* find(uint64_t epoch) {
    const auto found = nodes.find(epoch);
    return found == nodes.end() ? nullptr : found->second.get();
  }

  // The other end of this side, if it has connected too.
  std::pair<PeerId, Side*> opposite(uint64_t epoch, const Side& side) {
    Node* node = find(side.remote_epoch);
    if (node == nullptr) return {0, nullptr};
    for (auto& [id, other] : node->peers) {
      if (other.remote_epoch == epoch && other.incarnation == side.incarnation) return {id, &other};
    }
    return {0, nullptr};
  }

  void break_opposite(uint64_t epoch, const Side& side, bool process_gone) {
    const auto [id, other] = opposite(epoch, side);
    if (other == nullptr || other->broken) return;
    other->broken = true;
    other->ready = false;
    find(side.remote_epoch)
        ->deliver(PeerBroken{
            id, {StatusCode::kUnavailable, "the peer closed the connection"}, process_gone});
  }
};

namespace {

class LoopbackTransport : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub::State> hub, Node& node,
                    EndpointDescriptor descriptor)
      : hub_(std::move(hub)), node_(node), descriptor_(std::move(descriptor)) {}

  ~LoopbackTransport() override {
    const std::lock_guard lock(hub_->mutex);
    for (const auto& [id, side] : node_.peers) hub_->break_opposite(descriptor_.epoch, side, true);
    hub_->nodes.erase(descriptor_.epoch);
  }

  std::span<std::byte> segment() override { return node_.segment; }
  const EndpointDescriptor& descriptor() const override { return descriptor_; }
  int wake_fd() const override { return node_.event.fd(); }

  Status post(Operation operation) override {
    const std::lock_guard lock(hub_->mutex);
    return std::visit([this](auto& concrete) { return apply(concrete); }, operation);
  }

  bool poll(std::vector<TransferEvent>& events) override {
    const std::lock_guard lock(hub_->mutex);
    if (node_.inbox.empty()) return false;
    node_.event.drain();
    std::move(node_.inbox.begin(), node_.inbox.end(), std::back_inserter(events));
    node_.inbox.clear();
    return true;
  }

  bool arm() override {
    const std::lock_guard lock(hub_->mutex);
    return node_.inbox.empty();
  }

 private:
  Status apply(const Connect& connect) {
    if (connect.remote.epoch == descriptor_.epoch) {
      return {StatusCode::kInvalidArgument, "the peer's epoch equals our own"};
    }
    const Side side{connect.remote.epoch, connect.incarnation};
    const auto [added, fresh] = node_.peers.emplace(connect.peer, side);
    if (!fresh) return {StatusCode::kAlreadyExists, "the peer exists; ids are never reused"};
    const auto [id, other] = hub_->opposite(descriptor_.epoch, side);
    if (other == nullptr || other->broken) return {};
    added->second.ready = other->ready = true;
    node_.deliver(PeerReady{connect.peer, TransportKind::kLoopback});
    hub_->find(side.remote_epoch)->deliver(PeerReady{id, TransportKind::kLoopback});
    return {};
  }

  Status apply(const Disconnect& disconnect) {
    const auto found = node_.peers.find(disconnect.peer);
    if (found == node_.peers.end()) return unknown(disconnect.peer);
    hub_->break_opposite(descriptor_.epoch, found->second, false);
    node_.peers.erase(found);
    node_.deliver(PeerClosed{disconnect.peer, true});
    return {};
  }

  Status apply(const WriteSpans& write) {
    return copy(write.operation, write.peer, write.spans, true);
  }
  Status apply(const ReadSpans& read) { return copy(read.operation, read.peer, read.spans, false); }

  Status copy(OperationId operation, PeerId peer, const std::vector<CopySpan>& spans, bool write) {
    auto remote = ready(peer);
    if (!remote.ok()) return remote.status();
    std::vector<std::byte>& theirs = remote.value()->segment;
    Status checked = check_spans(spans, node_.segment.size(), theirs.size());
    if (!checked.ok()) return checked;
    const uint64_t start_ns = now_ns();
    const std::vector<CopySpan> merged = merge_spans(spans);
    for (const CopySpan& span : merged) {
      std::byte* here = node_.segment.data() + span.local_offset;
      std::byte* there = theirs.data() + span.remote_offset;
      std::memcpy(write ? there : here, write ? here : there, span.length_bytes);
    }
    OperationDone done{operation, {}, total_bytes(merged), static_cast<uint32_t>(merged.size()), 0};
    done.duration_ns = now_ns() - start_ns;
    node_.deliver(std::move(done));
    return {};
  }

  Status apply(const Fence& fence) {
    auto remote = ready(fence.peer);
    if (!remote.ok()) return remote.status();
    node_.deliver(OperationDone{fence.operation, {}, 0, 1, 0});
    return {};
  }

  Status apply(const Notify& notify) {
    auto remote = ready(notify.peer);
    if (!remote.ok()) return remote.status();
    const auto [id, other] = hub_->opposite(descriptor_.epoch, node_.peers.at(notify.peer));
    remote.value()->deliver(MessageArrived{id, notify.message});
    return {};
  }

  Result<Node*> ready(PeerId peer) {
    const auto found = node_.peers.find(peer);
    if (found == node_.peers.end()) return unknown(peer);
    if (found->second.broken) {
      return Status(StatusCode::kUnavailable, "the connection to the peer is broken or closed");
    }
    if (!found->second.ready) {
      return Status(StatusCode::kFailedPrecondition, "the peer is not ready yet");
    }
    return hub_->find(found->second.remote_epoch);
  }

  static Status unknown(PeerId peer) {
    return {StatusCode::kNotFound, "peer " + std::to_string(peer) + " is not connected"};
  }

  std::shared_ptr<LoopbackHub::State> hub_;
  Node& node_;  // owned by the hub, removed by our destructor
  const EndpointDescriptor descriptor_;
};

}  // namespace

LoopbackHub::LoopbackHub() : state_(std::make_shared<State>()) {}
LoopbackHub::~LoopbackHub() = default;

Result<std::unique_ptr<Transport>> LoopbackHub::create_transport(const TransportConfig& config,
                                                                 uint64_t epoch) {
  auto event = EventFd::create();
  if (!event.ok()) return event.status();
  const std::lock_guard lock(state_->mutex);
  auto& node = state_->nodes[epoch];
  if (node != nullptr) {
    return Status(StatusCode::kAlreadyExists, "the hub has a transport of this epoch");
  }
  node = std::make_unique<Node>(config.segment_bytes, std::move(event).value());
  EndpointDescriptor descriptor;
  descriptor.epoch = epoch;
  descriptor.host_id = host_identity();
  descriptor.process_id = ::getpid();
  descriptor.segment_address = reinterpret_cast<uint64_t>(node->segment.data());
  descriptor.segment_bytes = config.segment_bytes;
  descriptor.transports = "loopback";
  return std::unique_ptr<Transport>(
      std::make_unique<LoopbackTransport>(state_, *node, std::move(descriptor)));
}

std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> create_loopback_pair(
    const TransportConfig& config, uint64_t first_epoch, uint64_t second_epoch) {
  assert(first_epoch != second_epoch);
  LoopbackHub hub;
  auto first = hub.create_transport(config, first_epoch);
  auto second = hub.create_transport(config, second_epoch);
  return {std::move(first).value(), std::move(second).value()};
}

}  // namespace crossdock
