// A small world around two handoff tables: D's memory, P's writes in flight, the pairs between
// them, and a channel that may reorder, duplicate and lose. Everything that could happen next is a
// Move; applying one tells the tables and carries their actions out. The world knows what is true
// (which write may still land, who holds which block) and records the first violation.
//
// Two kinds of transport, after what was measured of them:
//   tcp: a dead or closed P's data may land until D closes its own endpoint
//   shm: data lands only while P's process copies; D's close stops nothing, P's close or death does
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossdock/handoff/handoff_table.h"

namespace crossdock::testing {

enum class WorldTransport : uint8_t { kTcp, kShm };

struct WorldConfig {
  WorldTransport transport = WorldTransport::kTcp;
  uint32_t num_handoffs = 1;
  uint32_t num_blocks = 4;  // of D's slab
  bool verify = false;
  bool reorder = false;
  // How often each fault may happen.
  uint32_t duplicates = 0;
  uint32_t drops = 0;
  uint32_t breaks = 0;   // on either side, unprovoked, and failed writes
  uint32_t crashes = 0;  // of P
  uint32_t cancels = 0;  // by P's caller
  uint32_t ends = 0;     // by D's caller, before the sequence finished
  uint32_t refusals = 0;
  uint32_t false_losses = 0;  // PeerLost of a P that lives
  uint32_t corruptions = 0;   // of a block, seen by verification only
  uint32_t ticks = 0;         // waits of D that run out while other things are under way
  const receiver::Lifecycle* receiver_lifecycle = nullptr;  // nullptr: the real ones
  const sender::Lifecycle* sender_lifecycle = nullptr;
};

inline constexpr uint32_t kMessagesMax = 1000;  // of one queue, to number them all

struct Move {
  enum class Kind : uint8_t {
    kExpect,
    kPrepare,
    kBegin,
    kDeliver,
    kDuplicate,
    kDrop,
    kLand,
    kReserve,
    kRefuse,
    kVerify,
    kCorrupt,
    kWritesArrived,
    kWritesStopped,
    kWriteFails,
    kFinish,
    kEnd,
    kCancel,
    kBreakD,
    kBreakP,
    kCloseD,
    kCloseP,
    kProcessGone,
    kConnect,
    kCrash,
    kPeerLost,
    kTick
  };
  Kind kind{};
  uint32_t index = 0;  // of a handoff, message, write or pair, by kind
};

class World {
 public:
  explicit World(const WorldConfig& config);

  // Everything that may happen next; with faults, those still allowed.
  std::vector<Move> moves(bool with_faults) const;
  void apply(const Move& move);
  // Lets everything that is under way finish, then ends what still lives as callers' deadlines
  // would, and records whatever is left over.
  void drain();

  const std::string& violation() const { return violation_; }
  // Equal texts mean equal futures.
  std::string fingerprint() const;
  uint32_t num_committed() const;

 private:
  enum class Hold : uint8_t { kNothing, kReserved, kActive, kQuarantined };
  struct Handoff {
    HandoffId id;
    uint32_t num_blocks = 2;
    uint32_t num_matched = 0;
    uint64_t epoch = 0;
    PairId pair = 0;
    bool met = false;  // expected while D saw the pair up
    bool expected = false, prepared = false, begun = false;
    bool d_ended = false, p_ended = false, p_ok = false;
    bool reserve_asked = false, verify_asked = false;
    bool writing = false, stopping = false, arrived_told = false, stopped_told = false;
    bool activated = false;
    Hold hold = Hold::kNothing;
    std::vector<BlockId> blocks;  // at D
  };
  struct Pair {
    PairId id = 0;
    uint64_t epoch = 0;
    bool d_up = true, d_closed = false, d_proven = false;
    bool p_up = true, p_closed = false;
    std::vector<HandoffMessage> to_d, to_p;
  };
  struct Write {
    uint32_t handoff = 0;
    BlockId block = 0;
    PairId pair = 0;
    bool reads_source = true;
  };

  void tell_d(const HandoffEvent& event, uint64_t tick = 0);
  void tell_p(const HandoffEvent& event);
  void act_d(const HandoffAction& action);
  void act_p(const HandoffAction& action);
  void start_writes(Handoff& handoff, const handoff_action::StartWrites& action);
  void reserve(Handoff& handoff);
  void activate(Handoff& handoff);
  void free_blocks(Handoff& handoff);
  void break_d(Pair& pair);
  void break_p(Pair& pair);
  void close_d(Pair& pair);
  void close_p(Pair& pair);
  void connect();
  void crash();
  void land(uint32_t write);
  void deliver(Move move);
  void drop_writes(PairId pair);
  void settle();
  void end_orphans();
  void pass_time();
  void end(Handoff& handoff);
  void cancel(Handoff& handoff);
  void apply_to_handoff(Move::Kind kind, Handoff& handoff);
  void check_end();

  void handoff_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const;
  void pair_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const;
  void message_moves(bool with_faults, std::vector<Move>& moves) const;

  Handoff& handoff(const HandoffId& id) { return handoffs_[id.low]; }
  Pair* pair(PairId id);
  const Pair* current_pair() const;
  std::vector<HandoffMessage>& queue(uint32_t index);
  bool intact(const Handoff& handoff) const;
  bool in_flight(const Handoff& handoff, bool reading_only) const;
  bool pair_up_at_d(PairId id) const;
  bool pair_up_at_p(PairId id) const;
  void violate(const std::string& what);

  WorldConfig config_;
  HandoffConfig table_config_;
  HandoffTable d_;
  HandoffTable p_;
  uint64_t p_epoch_ = 1;
  bool p_loss_told_ = true;
  bool messages_lost_ = false;
  std::vector<Handoff> handoffs_;
  std::vector<Pair> pairs_;
  std::vector<Write> writes_;
  std::vector<int> memory_;  // which handoff's data each block holds, -1: none
  std::vector<bool> free_;
  std::string violation_;
};

}  // namespace crossdock::testing
