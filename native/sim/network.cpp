// How connections begin and end, as the notes on PeerReady, PeerBroken and PeerClosed in
// transfer.h have it.
#include "network.h"

#include <algorithm>
#include <cassert>

namespace crossdock::sim {
namespace {

using Phase = Side::Phase;

constexpr uint64_t kHandshakeMaxNs = 20'000'000'000;
// A connection breaks a moment before it is seen that the process behind it has ended; on one host
// the report waits for that.
constexpr uint64_t kProcessEndGraceNs = 100'000'000;
// The kernel tells a watcher on the same host of the end of a process.
constexpr uint64_t kProcessEndMinNs = 10'000;
constexpr uint64_t kProcessEndMaxNs = 5'000'000;
// Whoever talks into a partition gives up after a while.
constexpr uint64_t kUnansweredMinNs = 1'000'000'000;
constexpr uint64_t kUnansweredMaxNs = 8'000'000'000;
constexpr uint64_t kCloseMaxNs = 200'000;
// How long a process that goes on takes to look at all that came meanwhile.
constexpr uint64_t kLookMaxNs = 10'000'000;
// Now and then something takes much longer than the rest, and so does what is in order behind it.
constexpr double kSlowShare = 1.0 / 64;
constexpr uint64_t kSlowFactor = 50;

bool offers(const Node& node, TransportKind kind) {
  const std::string padded = "," + node.descriptor.transports + ",";
  return padded.find("," + std::string(name(kind)) + ",") != std::string::npos;
}

}  // namespace

bool Network::End::same_host() const {
  const Node* a = side().node;
  const Node* b = other().node;
  return a != nullptr && b != nullptr && a->host == b->host;
}

// What is on its way in a connection holds on to that connection.
Network::~Network() {
  for (const auto& [key, connection] : connections_) {
    connection->data = connection->messages = connection->returns = {};
  }
}

Node& Network::add_node(EngineId id, std::string host, const std::string& transport, uint64_t epoch,
                        uint64_t segment_bytes) {
  auto node = std::make_unique<Node>();
  node->id = id;
  node->segment.resize(segment_bytes);
  EndpointDescriptor& descriptor = node->descriptor;
  descriptor.epoch = epoch;
  descriptor.host_id = host;
  descriptor.process_id = static_cast<int32_t>(id);
  descriptor.segment_bytes = segment_bytes;
  descriptor.transports = transport == "auto" ? "shm,tcp" : transport;
  node->host = std::move(host);
  nodes_.push_back(std::move(node));
  return *nodes_.back();
}

// ---- beginning ---------------------------------------------------------------------------------

void Network::apply(Node& node, Connect& connect) {
  const uint64_t ours = node.epoch();
  const uint64_t theirs = connect.remote.epoch;
  const bool first = ours < theirs;
  const auto broken = [&](StatusCode code, const char* why) {
    tell(node, PeerBroken{connect.peer, Status(code, why), false});
  };
  if (ours == theirs) return broken(StatusCode::kInvalidArgument, "the peer is this engine");
  const Key key{first ? std::pair(ours, theirs) : std::pair(theirs, ours), connect.incarnation};
  auto& connection = connections_[key];
  if (connection == nullptr) {
    connection = std::make_shared<Connection>();
    connection->incarnation = connect.incarnation;
    connection->epochs = {key.first.first, key.first.second};
  }
  const End end{connection, first ? size_t{0} : size_t{1}};
  Side& side = end.side();
  if (side.phase != Phase::kAbsent || find(node, connect.peer).has_value()) {
    return broken(StatusCode::kAlreadyExists, "the peer exists; ids are never reused");
  }
  side.node = &node;
  side.peer = connect.peer;
  side.phase = Phase::kConnecting;
  side.open = true;
  timeline_.note("connect", node.id, connect.peer, connect.incarnation);
  at_node(node, timeline_.now_ns() + kHandshakeMaxNs, [this, end] {
    if (end.side().phase != Phase::kConnecting) return;
    break_side(end, Status(StatusCode::kDeadlineExceeded, "no handshake in time"));
  });
  Node* remote = find(theirs);
  if (remote == nullptr || !remote->alive) {
    const uint64_t refused_ns = remote == nullptr ? 1'000'000 : delay(node, *remote);
    return at_node(node, timeline_.now_ns() + refused_ns, [this, end] {
      break_side(end, Status(StatusCode::kUnavailable, "nobody listens there"));
    });
  }
  if (end.other().phase == Phase::kConnecting) establish(connection);
}

void Network::establish(const std::shared_ptr<Connection>& connection) {
  Side& a = connection->sides[0];
  Side& b = connection->sides[1];
  if (connection->established || a.phase != Phase::kConnecting || b.phase != Phase::kConnecting ||
      partitioned(a.node, b.node)) {
    return;
  }
  const auto both = [&](TransportKind kind) {
    return offers(*a.node, kind) && offers(*b.node, kind);
  };
  if (a.node->host == b.node->host && both(TransportKind::kSharedMemory)) {
    connection->kind = TransportKind::kSharedMemory;
  } else if (both(TransportKind::kRc)) {
    connection->kind = TransportKind::kRc;
  } else if (both(TransportKind::kTcp)) {
    connection->kind = TransportKind::kTcp;
  } else {
    const Status refused(StatusCode::kFailedPrecondition, "no common transport");
    break_side({connection, 0}, refused);
    return break_side({connection, 1}, refused);
  }
  connection->established = true;
  for (size_t index = 0; index < 2; ++index) {
    const End end{connection, index};
    const uint64_t crossings = 2 * delay(*end.other().node, *end.side().node);
    at_node(*end.side().node, timeline_.now_ns() + crossings, [this, end] { become_ready(end); });
  }
}

void Network::become_ready(const End& end) {
  Side& side = end.side();
  if (side.phase != Phase::kConnecting) return;
  side.phase = Phase::kReady;
  ++timeline_.statistics.pairs_ready;
  timeline_.note("ready", side.node->id, side.peer, uint64_t(end.connection->kind));
  tell(*side.node, PeerReady{side.peer, end.connection->kind});
  flow_all(end.connection);
}

// ---- the end
// -------------------------------------------------------------------------------------

void Network::break_side(const End& end, const Status& status) {
  Side& side = end.side();
  if (side.phase == Phase::kAbsent || side.phase >= Phase::kBroken) return;
  side.phase = Phase::kBroken;
  ++timeline_.statistics.pairs_broken;
  timeline_.note("broken", side.node->id, side.peer);
  close_endpoints(end);
  end_operations(end, Status(StatusCode::kUnavailable, "the peer's connection broke"));
  notify_other(end);
  if (side.their_process_gone || !end.same_host()) return report_break(end, status);
  at_node(*side.node, timeline_.now_ns() + kProcessEndGraceNs,
          [this, end, status] { report_break(end, status); });
}

void Network::report_break(const End& end, const Status& status) {
  Side& side = end.side();
  if (side.phase != Phase::kBroken || side.break_reported) return;
  side.break_reported = true;
  tell(*side.node, PeerBroken{side.peer, status, side.their_process_gone});
}

void Network::apply(Node& node, Disconnect& disconnect) {
  const auto end = find(node, disconnect.peer);
  // Its Connect failed, so there never was anything to close.
  if (!end.has_value()) return tell(node, PeerClosed{disconnect.peer, true});
  Side& side = end->side();
  if (side.phase >= Phase::kClosing) return;
  const bool was_open = side.phase < Phase::kBroken;
  side.phase = Phase::kClosing;
  timeline_.note("disconnect", node.id, side.peer);
  if (was_open) {
    close_endpoints(*end);
    end_operations(*end, Status(StatusCode::kCancelled, "the peer was disconnected"));
    notify_other(*end);
  }
  try_close(*end);
}

// By force. What has not been taken of ours never will be; over the network nothing of theirs
// lands here any more.
void Network::close_endpoints(const End& end) {
  Side& side = end.side();
  side.open = false;
  for (const auto& piece : side.flights) {
    if (!piece->taken || piece->target == side.node) drop(*piece);
  }
  side.streams.clear();
  if (end.connection->shared_memory() || broken_promises.closing_proves_nothing) return;
  for (const auto& piece : end.other().flights) {
    if (piece->target == side.node || !piece->taken) drop(*piece);
  }
}

// Some end at once, some a moment later, as the transport lets go of them.
void Network::end_operations(const End& end, const Status& status) {
  Side& side = end.side();
  for (auto& [operation, pending] : side.operations) {
    const uint64_t later_ns = timeline_.random.below(2) * timeline_.random.below(kCloseMaxNs);
    const OperationId id = operation;
    pending.completion_lost = false;
    at_node(*side.node, timeline_.now_ns() + later_ns,
            [this, end, id, status] { complete(end, id, status); });
  }
}

void Network::notify_other(const End& end) {
  const Side& other = end.other();
  if (other.phase == Phase::kAbsent) return;
  const End there{end.connection, 1 - end.index};
  const uint64_t at_ns = timeline_.now_ns() + delay(*end.side().node, *other.node);
  at_node(*other.node, at_ns, [this, there] {
    // In a partition nothing is heard; the other side gives up by itself.
    if (partitioned(there.side().node, there.other().node)) return;
    break_side(there, Status(StatusCode::kUnavailable, "the peer closed the connection"));
  });
}

void Network::try_close(const End& end) {
  Side& side = end.side();
  if (side.phase != Phase::kClosing || !side.operations.empty()) return;
  at_node(*side.node, timeline_.now_ns() + timeline_.random.below(kCloseMaxNs),
          [this, end] { report_closed(end); });
}

void Network::report_closed(const End& end) {
  Side& side = end.side();
  if (side.phase != Phase::kClosing) return;
  side.phase = Phase::kClosed;
  const bool stopped = !end.connection->shared_memory() || side.their_side_closed ||
                       side.their_process_gone || broken_promises.closing_proves_nothing;
  timeline_.note("closed", side.node->id, side.peer, stopped);
  tell(*side.node, PeerClosed{side.peer, stopped});
  if (stopped) side.their_side_closed = true;  // nothing is left to prove
  Side& other = end.other();
  if (other.phase == Phase::kAbsent || !end.same_host()) return;
  const End there{end.connection, 1 - end.index};
  at_node(*other.node, timeline_.now_ns() + timeline_.random.below(kCloseMaxNs),
          [this, there] { prove_stopped(there); });
}

void Network::prove_stopped(const End& end) {
  Side& side = end.side();
  if (std::exchange(side.their_side_closed, true) || side.phase != Phase::kClosed) return;
  tell(*side.node, PeerClosed{side.peer, true});
}

// ---- processes
// -----------------------------------------------------------------------------------

void Network::end(Node& node) {
  node.alive = false;
  node.deferred.clear();
  timeline_.note("ended", node.id);
  for_each_end([&](const End& end) {
    if (end.side().node != &node) return;
    end.side().open = false;
    end.side().streams.clear();
    for (const auto& piece : end.side().flights) {
      if (!piece->taken || piece->target == &node) drop(*piece);
    }
    // Shared memory outlives the process; nobody else will ever look at it.
    if (!end.connection->shared_memory()) {
      for (const auto& piece : end.other().flights) {
        if (piece->target == &node || !piece->taken) drop(*piece);
      }
    }
    Side& other = end.other();
    if (other.phase == Phase::kAbsent || !other.node->alive) return;
    const End there{end.connection, 1 - end.index};
    if (there.same_host()) {
      at_node(*other.node,
              timeline_.now_ns() + timeline_.random.between(kProcessEndMinNs, kProcessEndMaxNs),
              [this, there] { on_process_gone(there); });
    }
    notify_other(end);
  });
}

void Network::on_process_gone(const End& end) {
  Side& side = end.side();
  side.their_process_gone = true;
  const Status gone(StatusCode::kUnavailable, "the peer's process has ended");
  break_side(end, gone);
  report_break(end, gone);
  prove_stopped(end);
}

void Network::stop(Node& node) {
  node.stopped = true;
  timeline_.note("stopped", node.id);
}

void Network::resume(Node& node) {
  if (!node.stopped) return;
  node.stopped = false;
  timeline_.note("resumed", node.id);
  // What has come meanwhile is looked at in whatever order, and copies go on until then.
  for (auto& action : std::exchange(node.deferred, {})) {
    at_node(node, timeline_.now_ns() + timeline_.random.below(kLookMaxNs), std::move(action));
  }
  for_each_end([&](const End& end) {
    flow_all(end.connection);
    if (end.side().node == &node) serve(end);
  });
}

// ---- faults of the network
// -----------------------------------------------------------------------

void Network::partition(const Node& a, const Node& b) {
  partitions_.insert(std::minmax(a.id, b.id));
  timeline_.note("partition", a.id, b.id);
  for_each_end([&](const End& end) {
    const Side& side = end.side();
    if (side.phase == Phase::kAbsent || !partitioned(side.node, end.other().node)) return;
    if (side.node != &a && side.node != &b) return;
    const uint64_t after_ns = timeline_.random.between(kUnansweredMinNs, kUnansweredMaxNs);
    at_node(*side.node, timeline_.now_ns() + after_ns, [this, end] {
      if (!partitioned(end.side().node, end.other().node)) return;
      break_side(end, Status(StatusCode::kUnavailable, "the peer does not answer"));
    });
  });
}

void Network::heal(const Node& a, const Node& b) {
  if (partitions_.erase(std::minmax(a.id, b.id)) == 0) return;
  timeline_.note("healed", a.id, b.id);
  for_each_end([&](const End& end) {
    establish(end.connection);
    flow_all(end.connection);
    // Who closed or ended meanwhile says so now.
    if (end.side().phase >= Phase::kBroken || !end.side().node->alive) notify_other(end);
  });
}

void Network::break_pairs(const Node& a, const Node& b) {
  timeline_.note("break", a.id, b.id);
  for_each_end([&](const End& end) {
    const Node* ours = end.side().node;
    const Node* theirs = end.other().node;
    if (!((ours == &a && theirs == &b) || (ours == &b && theirs == &a))) return;
    at_node(*end.side().node, timeline_.now_ns() + delay(*end.other().node, *end.side().node),
            [this, end] {
              break_side(end, Status(StatusCode::kUnavailable, "the connection was reset"));
            });
  });
}

void Network::disarm() {
  for (const auto& node : nodes_) node->prepared = {};
  tamperings = {};
  conditions.lost_completions = 0;
}

void Network::set_path(const Node& source, const Node& target, const PathConditions& conditions) {
  paths_[{source.id, target.id}] = conditions;
}

PathConditions Network::path(const Node& source, const Node& target) const {
  const auto found = paths_.find({source.id, target.id});
  return found == paths_.end() ? conditions.path : found->second;
}

// ---- what everything here is made of
// -------------------------------------------------------------

bool Network::partitioned(const Node* a, const Node* b) const {
  return a != nullptr && b != nullptr && partitions_.contains(std::minmax(a->id, b->id));
}

uint64_t Network::delay(const Node& source, const Node& target) {
  const PathConditions way = path(source, target);
  const uint64_t usual_ns = timeline_.random.between(way.delay_min_ns, way.delay_max_ns);
  if (!timeline_.random.chance(kSlowShare)) return usual_ns;
  return usual_ns + timeline_.random.below(kSlowFactor * way.delay_max_ns + 1);
}

void Network::at_node(Node& node, uint64_t at_ns, std::function<void()> action) {
  timeline_.schedule(at_ns, [&node, action = std::move(action)]() mutable {
    if (!node.alive) return;
    if (node.stopped) {
      node.deferred.push_back(std::move(action));
    } else {
      action();
    }
  });
}

void Network::tell(Node& node, TransferEvent event) {
  if (!node.alive) return;
  node.events.push_back(std::move(event));
  if (node.on_event) node.on_event();
}

void Network::send(const End& from, std::array<Pipe, 2> Connection::* pipes, uint64_t delay_ns,
                   std::function<void()> arrive) {
  auto& items = ((*from.connection).*pipes)[from.index].items;
  uint64_t at_ns = timeline_.now_ns() + delay_ns;
  if (!items.empty()) at_ns = std::max(at_ns, items.back().at_ns);
  items.push_back({at_ns, std::move(arrive)});
  timeline_.schedule(at_ns, [this, from, pipes] { flow(from.connection, from.index, pipes); });
}

void Network::flow(const std::shared_ptr<Connection>& connection, size_t from,
                   std::array<Pipe, 2> Connection::* pipes) {
  auto& items = ((*connection).*pipes)[from].items;
  while (!items.empty() && items.front().at_ns <= timeline_.now_ns() &&
         can_pass(*connection, from, pipes)) {
    const auto arrive = std::move(items.front().arrive);
    items.pop_front();
    arrive();
  }
}

void Network::flow_all(const std::shared_ptr<Connection>& connection) {
  for (const auto pipes : {&Connection::data, &Connection::returns, &Connection::messages}) {
    for (const size_t from : {size_t{0}, size_t{1}}) flow(connection, from, pipes);
  }
}

bool Network::can_pass(const Connection& connection, size_t from,
                       std::array<Pipe, 2> Connection::* pipes) const {
  const Side& receiver = connection.sides[1 - from];
  if (partitioned(connection.sides[from].node, receiver.node)) return false;
  if (receiver.phase == Phase::kConnecting) return false;
  const bool by_device = connection.kind == TransportKind::kRc && pipes == &Connection::data;
  return by_device || !receiver.node->stopped;
}

Node* Network::find(uint64_t epoch) {
  for (const auto& node : nodes_) {
    if (node->epoch() == epoch) return node.get();
  }
  return nullptr;
}

std::optional<Network::End> Network::find(Node& node, PeerId peer) {
  for (const auto& [key, connection] : connections_) {
    for (size_t index = 0; index < 2; ++index) {
      const Side& side = connection->sides[index];
      if (side.node == &node && side.peer == peer && side.phase != Phase::kAbsent) {
        return End{connection, index};
      }
    }
  }
  return std::nullopt;
}

void Network::for_each_end(const std::function<void(const End&)>& visit) {
  // A copy: what is visited may connect.
  const auto connections = connections_;
  for (const auto& [key, connection] : connections) {
    for (size_t index = 0; index < 2; ++index) {
      if (connection->sides[index].phase != Phase::kAbsent) visit({connection, index});
    }
  }
}

}  // namespace crossdock::sim
