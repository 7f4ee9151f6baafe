// A pair of endpoints between two nodes, in one incarnation.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "crossdock/transfer/transfer.h"
#include "node.h"
#include "piece.h"

namespace crossdock::sim {

// What passes one way, in order. The head waits while it is not due or cannot pass.
struct Pipe {
  struct Item {
    uint64_t at_ns = 0;
    std::function<void()> arrive;
  };
  std::deque<Item> items;
};

struct PendingOperation {
  size_t num_pieces_left = 0;  // that are not finished here
  uint64_t bytes = 0;
  uint32_t num_transfers = 0;
  uint64_t posted_ns = 0;
  bool completion_lost = false;
};

// One side's end of a connection. See UcxPeer: broken once its error was noticed, closing once the
// loop said Disconnect, closed once that was answered.
struct Side {
  enum class Phase : uint8_t { kAbsent, kConnecting, kReady, kBroken, kClosing, kClosed };
  Node* node = nullptr;
  PeerId peer = 0;
  Phase phase = Phase::kAbsent;
  // Its endpoints are open: bytes and messages for it arrive.
  bool open = false;
  bool break_reported = false;
  bool their_side_closed = false;   // said so, and thus reads and writes no shared memory
  bool their_process_gone = false;  // seen
  std::map<OperationId, PendingOperation> operations;
  std::map<StreamId, std::deque<std::shared_ptr<Piece>>> streams;  // not begun yet
  std::vector<std::shared_ptr<Piece>> flights;  // every piece of ours that is not over
  bool serving = false;
};

struct Connection {
  uint64_t incarnation = 0;
  TransportKind kind = TransportKind::kTcp;  // of the data, once `established`
  bool established = false;
  std::array<Side, 2> sides;
  std::array<uint64_t, 2> epochs{};  // of the sides, absent ones too
  // By the side that sends. Data and messages go by different endpoints, so either may overtake
  // the other; `returns` carries what answers `data`.
  std::array<Pipe, 2> data;
  std::array<Pipe, 2> messages;
  std::array<Pipe, 2> returns;

  bool shared_memory() const { return established && kind == TransportKind::kSharedMemory; }
};

}  // namespace crossdock::sim
