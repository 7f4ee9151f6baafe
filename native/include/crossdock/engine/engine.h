// The engine: one loop thread that schedules, runs the model, samples, and alone owns the block
// pool, the prefix tree and the handoff table. The transfer thread moves bytes beside it.
//
// Theory of operation. The loop drains commands and transfer events, turns them into scheduler and
// handoff events, plans a step, runs it, and reports its tokens. It looks at its inputs between
// layers too, so that a grant or a cancel does not wait for a long chunk to end. What a step in
// flight touches is not freed under it: a sequence that ends then is released after the step.
// Without work the loop sleeps. Time and the transfers are arguments, so that the same loop runs
// in a simulation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "crossdock/engine/config.h"
#include "crossdock/engine/link.h"
#include "crossdock/engine/peers.h"
#include "crossdock/engine/request.h"
#include "crossdock/engine/senders.h"
#include "crossdock/engine/store_traffic.h"
#include "crossdock/handoff/handoff_table.h"
#include "crossdock/model/executor.h"
#include "crossdock/sched/scheduler.h"
#include "crossdock/sys/clock.h"
#include "crossdock/transfer/transfers.h"

namespace crossdock {

class Engine {
 public:
  // Loads the model, allocates the slab, starts the transfer thread, and announces itself to the
  // front. The error says what is missing and what to do.
  static Result<std::unique_ptr<Engine>> start(const EngineConfig& config, EngineLink& link);

  // The same from parts that the caller made. The segment of `transfers` holds the slab and, behind
  // it, the staging blocks.
  Engine(const EngineConfig& config, EngineLink& link, std::unique_ptr<Executor> executor,
         std::unique_ptr<Transfers> transfers, std::unique_ptr<Clock> clock);

  // Until Shutdown (OK) or a broken link.
  Status run();

 private:
  friend class EngineInspector;  // what a simulation's checkers look at

  // ---- loop.cpp: inputs, steps, sleep
  Status pump();
  void sleep();
  void step(const StepPlan& plan);
  void start_sources(const StepPlan& plan);
  void prepare_batch(const StepPlan& plan);
  void on_layer(uint32_t layer);
  void sample_row(const PlanEntry& entry, uint32_t entry_index, std::span<const float> row);
  void finish_step(const StepPlan& plan, uint64_t duration_ticks);
  void offer_to_store(SequenceId id);
  CacheFormat format() const { return {executor_->layout(), executor_->numerics_id()}; }
  void accept_token(Request& request, int32_t token, uint32_t position, const LogitDigest& digest);
  void emit(const link::Event& event);
  void flush_tokens();
  uint64_t now_ns() const { return clock_->now_ns(); }
  uint64_t tick() const { return now_ns() / 1000; }  // microseconds

  // ---- commands.cpp: what the front asks
  void on(link::Generate& command);
  void on(link::Expect& command);
  void on(link::Prefill& command);
  void on(link::Cancel& command);
  void on(link::ConnectPeer& command);
  void on(link::DisconnectPeer& command);
  void on(link::PeerLost& command);
  void on(link::StoreFound& command);
  void on(link::StorePlaces& command);
  void on(link::QueryStatus& command);
  void on(link::Shutdown& command);
  Request* admit(const link::Task& task, RequestKind kind);
  void fail(SequenceId id, const Status& status);
  void end_request(SequenceId id);
  void release(SequenceId id);
  bool holds_reservation(SequenceId id) const;

  // ---- handoffs.cpp: what the transfer thread reports and the handoff table decides
  void on(OperationDone& event);
  void on(MessageArrived& event);
  void on(PeerReady& event);
  void on(PeerBroken& event);
  void on(PeerClosed& event);
  void break_pair(PeerId id, const Status& status);
  void tell(HandoffEvent event);
  void settle(const HandoffId& id);
  void act(handoff_action::Send& action);
  void act(handoff_action::Reserve& action);
  void act(handoff_action::Verify& action);
  void act(handoff_action::Activate& action);
  void act(handoff_action::Quarantine& action);
  void act(handoff_action::EndQuarantine& action);
  void act(handoff_action::DropReservation& action);
  void act(handoff_action::Lost& action);
  void act(handoff_action::StartWrites& action);
  void act(handoff_action::StopWrites& action);
  void act(handoff_action::Finished& action);
  void act(handoff_action::BreakPair& action);

  const EngineConfig config_;
  EngineLink& link_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Transfers> transfer_;
  std::unique_ptr<Clock> clock_;
  Scheduler scheduler_;
  HandoffTable table_;
  Peers peers_;
  Senders senders_;
  StoreTraffic store_;

  RequestMap requests_;
  // A handoff that arrives here; kept until nothing of it is reserved or quarantined.
  struct Receiving {
    SequenceId sequence_id = 0;
    uint64_t source_epoch = 0;
    uint32_t num_matched_blocks = 0;
  };
  std::map<HandoffId, Receiving> receiving_;
  std::vector<HandoffEvent> untold_;  // events that arose while others were being told
  bool telling_ = false;
  bool stopped_ = false;
  Status failure_;  // of the link, seen within a step

  // Of the step in flight.
  bool in_step_ = false;
  std::vector<BatchItem> batch_;
  std::vector<TokenResult> results_;
  std::vector<ChoiceState> choices_;  // beside results_
  struct SentChunk {
    HandoffId handoff;
    uint32_t end_block = 0;  // blocks before it are complete after the step
  };
  std::vector<SentChunk> sent_chunks_;  // of sources
  // Ended within the step. A set: a handoff that stops and finishes in one step releases twice.
  std::set<SequenceId> to_release_;
  std::vector<TransferEvent> transfer_events_;
  link::Tokens tokens_;
  uint64_t num_steps_ = 0;
  uint64_t num_generated_tokens_ = 0;
  uint64_t num_computed_tokens_ = 0;
};

}  // namespace crossdock
