// A small world around handoff tables: a receiver D with its memory, one or two senders P with
// writes in flight, the pairs between them, and a channel that may reorder, duplicate, lose and
// invent. Everything that could happen next is a Move; applying one tells the tables and carries
// their actions out. The world knows what is true (which write may still land, who holds which
// block) and records the first violation of an invariant.
//
// Two kinds of transport, after what was measured of them:
//   tcp: a dead or closed P's data may land until D closes its own endpoint
//   shm: data lands only while P's process copies; D's close stops nothing, P's close or death does
//
// A connection keeps order and loses nothing, so most of the channel's faults are worse than what
// is promised: the tables are to be right even then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crossdock/handoff/envelope.h"
#include "crossdock/handoff/handoff_table.h"

namespace crossdock::testing {

enum class WorldTransport : uint8_t { kTcp, kShm };

// The design's invariants, and the tables' own contract.
enum class Invariant : uint8_t {
  kNoReuse,
  kCommitCovers,
  kEndsOnce,
  kConserved,
  kTokensEqual,
  kTenantsApart,
  kDrains,
  kForgeriesFail,
  kContract,
};
const char* name(Invariant invariant);

struct Violation {
  Invariant invariant{};
  std::string what;
};

// How often each fault may happen.
struct Faults {
  uint32_t duplicates = 0;
  uint32_t drops = 0;
  uint32_t strays = 0;     // messages that nobody sent, see Stray
  uint32_t forgeries = 0;  // messages of every kind that are not sealed under the pair's key
  uint32_t breaks = 0;     // on either side, unprovoked, and writes that fail or cannot be posted
  uint32_t p_crashes = 0;
  uint32_t d_crashes = 0;
  uint32_t router_deaths = 0;     // between the two calls of a handoff
  uint32_t cancels = 0;           // by P's caller
  uint32_t ends = 0;              // by D's caller, before the sequence finished
  uint32_t refusals = 0;          // of a reservation although there is room
  uint32_t false_losses = 0;      // PeerLost of a P that lives
  uint32_t corruptions = 0;       // of a block, which only verification sees
  uint32_t lost_completions = 0;  // of a handoff's writes and fence, at P
  uint32_t ticks = 0;             // waits that run out while other things are under way
  friend bool operator==(const Faults&, const Faults&) = default;
};

// What the tables are kept from telling apart, to prove that it matters: the world shows them
// every such field as the one they expect, and forges these kinds under the pair's own key.
struct Blindness {
  bool epoch = false, incarnation = false, attempt = false, pair = false;
  uint32_t seals_of = 0;  // a bit a kind
};

// What becomes of a forgery: wrong answers but for the first.
enum class OnForgery : uint8_t { kTellTable, kAlwaysBreak, kNeverBreak };

struct WorldConfig {
  std::string name;
  WorldTransport transport = WorldTransport::kTcp;
  uint32_t num_senders = 1;
  uint32_t num_handoffs = 1;
  uint32_t num_blocks = 4;  // of D's slab
  bool reorder = false;
  bool keys_differ = false;  // of the two ends of every pair
  Faults faults;
  uint32_t depth_max = UINT32_MAX;  // of its search, in moves
  HandoffConfig table{.open_wait_ticks = 10,
                      .quarantine_grace_ticks = 10,
                      .answer_wait_ticks = 20,
                      .tombstones_max = 64};
  Blindness blind;
  OnForgery on_forgery = OnForgery::kTellTable;
  const receiver::Lifecycle* receiver_lifecycle = nullptr;  // nullptr: the real ones
  const sender::Lifecycle* sender_lifecycle = nullptr;
};

// A message that a peer sealed and never sent about this handoff: of another attempt or
// incarnation, from another pair, or in answer to nothing. Each claims what is not true then.
enum class Stray : uint8_t {
  kCommitOfAttempt,
  kCommitOfIncarnation,
  kCommitOfPair,
  kAbortedOfAttempt,
  kAbortedOfIncarnation,
  kAbortedOfPair,
  kAckOfAttempt,
  kAckOfIncarnation,
  kGrantOfAttempt,
  kGrantOfIncarnation,
  kNack,
};
inline constexpr uint32_t kNumStrays = 11;
inline constexpr uint32_t kNumKinds = std::variant_size_v<HandoffMessage>;

inline constexpr uint64_t kFirstEpochOfD = 0xD0;
inline constexpr uint32_t kMessagesMax = 1000;  // of one queue, to number them all

struct Move {
  enum class Kind : uint8_t {
    kExpect,
    kPrepare,
    kBegin,
    kDeliver,
    kDuplicate,
    kDrop,
    kStray,
    kForge,
    kLand,
    kReserve,
    kRefuse,
    kVerify,
    kCorrupt,
    kWritesArrived,
    kWritesStopped,
    kWriteFails,
    kLoseCompletions,
    kFinish,
    kEnd,
    kCancel,
    kRouterDies,
    kBreakD,
    kBreakP,
    kCloseD,
    kCloseP,
    kProcessGone,
    kConnect,
    kCrashD,
    kCrashP,
    kPeerLost,
    kTickD,
    kTickP
  };
  Kind kind{};
  uint32_t index = 0;  // of a handoff, message, write, pair or sender, by kind
  friend bool operator==(const Move&, const Move&) = default;
};

std::string to_string(const Move& move);

class World {
 public:
  explicit World(const WorldConfig& config);

  // Everything that may happen next; with faults, those still allowed.
  std::vector<Move> moves(bool with_faults) const;
  void apply(const Move& move);
  // Lets everything that is under way finish, then ends what still lives as callers' deadlines
  // would, and records whatever is left over.
  void drain();

  const std::optional<Violation>& violation() const { return violation_; }
  // Equal texts mean equal futures.
  std::string fingerprint() const;
  uint32_t num_committed() const;

 private:
  enum class Hold : uint8_t { kNothing, kReserved, kActive, kQuarantined };
  struct Handoff {
    HandoffId id;
    uint32_t sender = 0;
    uint32_t num_blocks = 2;
    uint32_t num_matched = 0;
    uint64_t epoch = 0;
    PairId pair = 0;
    bool met = false;  // expected while D saw the pair up
    bool expected = false, prepared = false, begun = false, router_gone = false;
    bool d_ended = false, p_ended = false, p_ok = false;
    bool reserve_asked = false, verify_asked = false;
    bool writing = false, stopping = false, arrived_told = false, stopped_told = false;
    bool completions_lost = false;
    bool activated = false;
    Hold hold = Hold::kNothing;
    std::vector<BlockId> blocks;  // at D
  };
  struct Sender {
    HandoffTable table;
    uint64_t epoch = 0;
    bool loss_told = true;
  };
  struct Pair {
    PairId id = 0;
    uint32_t sender = 0;
    uint64_t p_epoch = 0, d_epoch = 0;
    bool d_up = true, d_closed = false, d_proven = false;
    bool p_up = true, p_closed = false;
    bool d_heard = false, p_heard = false;  // something authentic
    std::vector<HandoffMessage> to_d, to_p;
  };
  struct Write {
    uint32_t handoff = 0;
    BlockId block = 0;
    PairId pair = 0;
    bool reads_source = true;
    bool lands = true;
  };

  // ---- world.cpp: what happens
  void apply_to_handoff(Move::Kind kind, Handoff& handoff);
  void apply_to_pair(Move::Kind kind, Pair& pair);
  void call(Move::Kind kind, Handoff& handoff);
  void reserve(Handoff& handoff);
  void finish_writes(Move::Kind kind, Handoff& handoff);
  void deliver(Move move);
  void stray(Handoff& handoff, Stray stray);
  void forge(Handoff& handoff, uint32_t kind);
  void land(uint32_t write);
  void connect(uint32_t sender);
  void close_d(Pair& pair);
  void close_p(Pair& pair);
  void crash_d();
  void crash_p(uint32_t sender);
  void stop_landing(PairId pair);
  void prune_writes();

  // ---- world_actions.cpp: what the tables are told and ask for
  HandoffTable make_table() const;
  void blindfold(HandoffEvent& event, bool at_d) const;
  void arrive(Pair& on, bool to_d, const HandoffMessage& message, bool forged);
  void tell_d(HandoffEvent event, uint64_t tick = 0);
  void tell_p(uint32_t sender, HandoffEvent event, uint64_t tick = 0);
  void act_d(const HandoffAction& action);
  void act_p(uint32_t sender, const HandoffAction& action);
  void start_writes(Handoff& handoff, const handoff_action::StartWrites& action);
  void finish_at_p(const handoff_action::Finished& action);
  void activate(Handoff& handoff, const Commit& commit);
  void free_blocks(Handoff& handoff);
  void break_d(Pair& pair);
  void break_p(Pair& pair);

  // ---- world_moves.cpp
  void handoff_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const;
  void pair_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const;
  void sender_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const;
  void message_moves(bool with_faults, std::vector<Move>& moves) const;
  void stray_moves(uint32_t index, std::vector<Move>& moves) const;
  void forge_moves(uint32_t index, std::vector<Move>& moves) const;

  // ---- world_checks.cpp
  void check_state();
  void check_end();
  void settle();
  void end_orphans();
  void end_overdue();
  void check_none_waits();
  void pass_time();
  bool is_time_left() const;

  Handoff& handoff(const HandoffId& id) { return handoffs_[id.low]; }
  Pair& pair(PairId id) { return pairs_[id - 1]; }
  const Pair& pair(PairId id) const { return pairs_[id - 1]; }
  const Pair* current_pair(uint32_t sender) const;
  // The pair by which a message about the handoff may stray in; nullptr: none is up.
  const Pair* stray_pair(const Handoff& handoff, Stray stray) const;
  bool is_gone(const Pair& pair) const { return pair.p_epoch != senders_[pair.sender].epoch; }
  uint32_t num_free() const;
  bool intact(const Handoff& handoff) const;
  bool holds(const Handoff& handoff, BlockId block) const;
  bool in_flight(const Handoff& handoff) const;  // may land
  bool reads_sources(const Handoff& handoff) const;
  void violate(Invariant invariant, const std::string& what);

  WorldConfig config_;
  Faults given_;  // of which config_ has what is left
  HandoffTable d_;
  uint64_t d_epoch_ = kFirstEpochOfD;
  std::vector<Sender> senders_;
  bool promise_broken_ = false;  // something was lost, or invented
  bool forged_first_ = false;    // on a pair that had brought nothing authentic: it breaks
  std::vector<Handoff> handoffs_;
  std::vector<Pair> pairs_;
  std::vector<Write> writes_;
  std::vector<int> memory_;  // which handoff's data each block holds, -1: none
  std::vector<bool> free_;
  std::optional<Violation> violation_;
};

}  // namespace crossdock::testing
