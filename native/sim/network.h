// The network between the processes of a world: a twin of the real transports that does whatever
// they are allowed to do, by chance. It is the specification of what the engine has to bear.
//
// One-sided operations are cut into pieces. A piece is *taken* (its bytes are read at the source)
// and *lands* (they are written at the target) at some later moment; between the two it is on its
// way, whatever happens to its sender. Per transport:
//   shm  The sender's transfer thread copies: a piece is taken and lands at one moment, never while
//        the sender is stopped, never after it is gone. Nothing the target does stops it; only the
//        sender's own closing does, or its end.
//   tcp  Taken by the sender's transfer thread, landed by the target's: each waits while its
//        process is stopped. A piece that was taken lands although its sender has died, until the
//        target has closed its endpoint. A write is done, as its sender hears, when it is taken.
//   rc   The same, but the two devices go on while the processes are stopped.
// A connection keeps the order of what it carries. A fence passes behind the writes before it and
// is done when its answer is back. Messages go by an endpoint of their own and may overtake data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "connection.h"
#include "memory_checker.h"
#include "node.h"
#include "tampering.h"
#include "timeline.h"

namespace crossdock::sim {

struct PathConditions {
  uint64_t delay_min_ns = 5'000;
  uint64_t delay_max_ns = 100'000;  // of most: some take up to fifty times longer
  uint64_t bytes_per_s = 100'000'000;
};

struct NetworkConditions {
  PathConditions path;
  double lost_completions = 0;
  uint64_t write_chunk_bytes = 4096;
};

// Promises of the transports that a test has broken, to see that a checker fires.
struct BrokenPromises {
  bool fence_proves_nothing = false;
  bool closing_proves_nothing = false;
};

class Network {
 public:
  Network(Timeline& timeline, MemoryChecker& checker) : timeline_(timeline), checker_(checker) {}
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // `transport`: as in the engine's configuration. The node lives as long as the network.
  Node& add_node(EngineId id, std::string host, const std::string& transport, uint64_t epoch,
                 uint64_t segment_bytes);
  void submit(Node& node, Operation operation);

  void end(Node& node);
  void stop(Node& node);
  void resume(Node& node);

  void partition(const Node& a, const Node& b);
  void heal(const Node& a, const Node& b);
  void break_pairs(const Node& a, const Node& b);
  void set_path(const Node& source, const Node& target, const PathConditions& conditions);
  PathConditions path(const Node& source, const Node& target) const;

  // What was prepared and has not happened never will, and no more completions are lost.
  void disarm();

  uint64_t num_operations(const Node& node) const;

  NetworkConditions conditions;
  BrokenPromises broken_promises;
  Tamperings tamperings;

 private:
  using Key = std::pair<std::pair<uint64_t, uint64_t>, uint64_t>;  // epochs, incarnation
  // A side of a connection that the handlers of later moments can hold on to.
  struct End {
    std::shared_ptr<Connection> connection;
    size_t index = 0;
    Side& side() const { return connection->sides[index]; }
    Side& other() const { return connection->sides[1 - index]; }
    bool same_host() const;
  };

  // ---- network.cpp: how connections begin and end
  void apply(Node& node, Connect& connect);
  void apply(Node& node, Disconnect& disconnect);
  void establish(const std::shared_ptr<Connection>& connection);
  void become_ready(const End& end);
  void break_side(const End& end, const Status& status);
  void report_break(const End& end, const Status& status);
  void close_endpoints(const End& end);
  void end_operations(const End& end, const Status& status);
  void notify_other(const End& end);
  void try_close(const End& end);
  void report_closed(const End& end);
  void prove_stopped(const End& end);
  void on_process_gone(const End& end);
  Node* find(uint64_t epoch);
  std::optional<End> find(Node& node, PeerId peer);
  void for_each_end(const std::function<void(const End&)>& visit);

  // ---- network_data.cpp: what they carry
  void apply(Node& node, WriteSpans& write);
  void apply(Node& node, ReadSpans& read);
  void apply(Node& node, Fence& fence);
  void apply(Node& node, Notify& notify);
  void post_spans(Node& node, Piece::Kind kind, const WriteSpans& write);
  void post(const End& end, OperationId operation, std::vector<std::shared_ptr<Piece>> pieces);
  std::vector<std::shared_ptr<Piece>> cut(const End& end, Piece::Kind kind,
                                          const WriteSpans& write) const;
  void serve(const End& end);
  void take(const End& end, const std::shared_ptr<Piece>& piece);
  void take_bytes(Piece& piece);
  void take_write(const End& end, const std::shared_ptr<Piece>& piece);
  void take_read(const End& end, const std::shared_ptr<Piece>& piece);
  void take_fence(const End& end, const std::shared_ptr<Piece>& piece);
  void land(const End& issuer, Piece& piece);
  void drop(Piece& piece);
  void finish_piece(const End& end, const Piece& piece);
  void complete(const End& end, OperationId operation, const Status& status);
  void fail(Node& node, OperationId operation, const Status& status);
  void send_message(const End& end, const std::vector<std::byte>& message, uint64_t extra_ns);

  // ---- both
  bool partitioned(const Node* a, const Node* b) const;
  uint64_t delay(const Node& source, const Node& target);
  // The transfer thread of `node` does something then; later if it is stopped, never if it ends.
  void at_node(Node& node, uint64_t at_ns, std::function<void()> action);
  void tell(Node& node, TransferEvent event);
  void send(const End& from, std::array<Pipe, 2> Connection::* pipes, uint64_t delay_ns,
            std::function<void()> arrive);
  void flow(const std::shared_ptr<Connection>& connection, size_t from,
            std::array<Pipe, 2> Connection::* pipes);
  void flow_all(const std::shared_ptr<Connection>& connection);
  bool can_pass(const Connection& connection, size_t from,
                std::array<Pipe, 2> Connection::* pipes) const;

  Timeline& timeline_;
  MemoryChecker& checker_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<Key, std::shared_ptr<Connection>> connections_;
  std::set<std::pair<EngineId, EngineId>> partitions_;
  std::map<std::pair<EngineId, EngineId>, PathConditions> paths_;
};

}  // namespace crossdock::sim
