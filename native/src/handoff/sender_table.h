// The records of the sending side. It turns what happened into an input of the sender's table and
// carries the steps of the transition out; it decides nothing else.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "crossdock/handoff/handoff_table.h"
#include "crossdock/handoff/lifecycle.h"
#include "deadlines.h"
#include "pair_table.h"
#include "tombstones.h"

namespace crossdock {

class SenderTable {
 public:
  SenderTable(const HandoffConfig& config, const sender::Lifecycle& lifecycle);

  void on(const handoff_event::Prepare& event, Exchange& x);
  void on(const handoff_event::Begin& event, Exchange& x);
  void on(const handoff_event::WritesArrived& event, Exchange& x);
  void on(const handoff_event::WritesFailed& event, Exchange& x);
  void on(const handoff_event::WritesStopped& event, Exchange& x);
  void on(const handoff_event::Cancel& event, Exchange& x);
  void on_message(PairId pair, const GrantBlocks& grant, Exchange& x);
  void on_message(PairId pair, const Refuse& refuse, Exchange& x);
  void on_message(PairId pair, const Revoke& revoke, Exchange& x);
  void on_message(PairId pair, const Ack& ack, Exchange& x);
  void on_message(PairId pair, const Nack& nack, Exchange& x);
  void pair_broken(PairId pair, Exchange& x);
  void pair_closed(PairId pair, Exchange& x);
  void expire(Exchange& x);

  sender::State state(const HandoffId& id) const;
  uint32_t num_live() const { return static_cast<uint32_t>(live_.size()); }
  void count_states(std::vector<std::pair<const char*, uint32_t>>& counts) const;
  uint64_t next_tick() const { return deadlines_.next_tick(); }
  void describe(std::string& text) const;

 private:
  using State = sender::State;
  using Input = sender::Input;
  using Step = sender::Step;

  struct Record {
    State state = State::kAbsent;
    uint64_t arrival = 0;
    HandoffKey key;
    bool prepared = false;  // a Prepare named it
    PairId pair = 0;
    uint32_t num_prompt_tokens = 0;
    uint32_t num_blocks = 0;
    uint64_t deadline = kNoDeadline;
    Status outcome;  // why it ends, from the first that wanted it to
  };
  struct Cause {
    const handoff_event::Prepare* prepare = nullptr;
    const handoff_event::WritesArrived* arrived = nullptr;
    const GrantBlocks* grant = nullptr;
    const HandoffKey* key = nullptr;  // of the message that is answered
    PairId pair = 0;
    Status reason;
  };

  template <typename Message>
  void message(PairId pair, const Message& message, Input input, Cause cause, Exchange& x);
  void apply_on_pair(PairId pair, Input input, Exchange& x);
  void apply(const HandoffId& id, Input input, const Cause& cause, Exchange& x);
  void run(Step step, const Record& record, const Cause& cause, Exchange& x);
  void move(const HandoffId& id, Record&& record, State next, Exchange& x);

  HandoffConfig config_;
  const sender::Lifecycle* lifecycle_;
  std::map<HandoffId, Record> live_;
  Deadlines deadlines_;
  // Apart, so that a flood of unknown ids does not push out what is known of our own handoffs.
  Tombstones<State> ended_;
  Tombstones<State> strangers_;
  uint64_t next_arrival_ = 0;
};

}  // namespace crossdock
