// The records of the receiving side. It turns what happened into an input of the receiver's table
// and carries the steps of the transition out; it decides nothing else.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "crossdock/handoff/handoff_table.h"
#include "crossdock/handoff/lifecycle.h"
#include "deadlines.h"
#include "pair_table.h"
#include "tombstones.h"

namespace crossdock {

class ReceiverTable {
 public:
  ReceiverTable(const HandoffConfig& config, const receiver::Lifecycle& lifecycle);

  void on(const handoff_event::Expect& event, bool epoch_lost, Exchange& x);
  void on(const handoff_event::Reserved& event, Exchange& x);
  void on(const handoff_event::Verified& event, Exchange& x);
  void on(const handoff_event::End& event, Exchange& x);
  void on_message(PairId pair, const Open& open, Exchange& x);
  void on_message(PairId pair, const Commit& commit, Exchange& x);
  void on_message(PairId pair, const Aborted& aborted, Exchange& x);
  // The pair is no longer up; expectations of its epoch go with it.
  void pair_broken(PairId pair, uint64_t peer_epoch, Exchange& x);
  void writes_proven(PairId pair, Exchange& x);
  void peer_lost(uint64_t peer_epoch, Exchange& x);
  void expire(Exchange& x);

  receiver::State state(const HandoffId& id) const;
  uint32_t num_live() const { return static_cast<uint32_t>(live_.size()); }
  void count_states(std::vector<std::pair<const char*, uint32_t>>& counts) const;
  uint32_t num_quarantined() const { return num_quarantined_; }
  uint64_t next_tick() const { return deadlines_.next_tick(); }
  void describe(std::string& text) const;

 private:
  using State = receiver::State;
  using Input = receiver::Input;
  using Step = receiver::Step;

  struct Record {
    State state = State::kAbsent;
    uint64_t arrival = 0;
    HandoffKey key;  // the incarnation is set once the pair is known
    uint64_t peer_epoch = 0;
    uint32_t num_prompt_tokens = 0;
    uint32_t num_choices = 0;
    bool expected = false;  // an Expect named it
    bool has_pair = false;
    PairId pair = 0;
    uint64_t deadline = kNoDeadline;
    uint32_t num_matched_blocks = 0;
    std::vector<BlockId> blocks;
    std::optional<Commit> commit;  // while it is verified
  };
  // What came with the input, as far as it brought anything.
  struct Cause {
    PairId pair = 0;
    const HandoffKey* key = nullptr;  // of the message that is answered
    const Open* open = nullptr;
    const Commit* commit = nullptr;
    const handoff_event::Expect* expect = nullptr;
    const handoff_event::Reserved* reserved = nullptr;
    Status reason;
  };
  struct Reply {
    PairId pair = 0;
    HandoffKey key;
  };

  void apply(const HandoffId& id, Input input, const Cause& cause, Exchange& x);
  void absorb(Record& record, const Cause& cause, Exchange& x);
  void run(Step step, const Record& record, const Status& reason, const Reply& reply, Exchange& x);
  void move(const HandoffId& id, Record&& record, State next, Exchange& x);
  void bind(Record& record, PairId pair, Exchange& x);
  void unbind(Record& record, Exchange& x);
  uint64_t deadline_of(const Record& record, const Exchange& x) const;

  Input input_of(const Open& open, PairId pair, const Exchange& x) const;
  Input input_of(const Commit& commit) const;
  // The counter of the refusal of a message that does not belong to the handoff it names.
  HandoffCounter refusal(const HandoffKey& key, PairId pair, const Exchange& x) const;
  const Tombstones<State>::Tombstone* find_tombstone(const HandoffId& id) const;
  // Ids in arrival order, so that one script of events gives one script of actions.
  template <typename Predicate>
  std::vector<HandoffId> select(Predicate predicate) const;

  HandoffConfig config_;
  const receiver::Lifecycle* lifecycle_;
  std::map<HandoffId, Record> live_;
  Deadlines deadlines_;
  // Apart, so that a flood of unknown ids does not push out what is known of our own handoffs.
  Tombstones<State> ended_;
  Tombstones<State> strangers_;
  uint64_t next_arrival_ = 0;
  uint32_t num_quarantined_ = 0;
};

}  // namespace crossdock
