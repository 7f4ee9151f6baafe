// What the front asks of the engine.

#include <cassert>
#include <string>

#include "crossdock/engine/engine.h"

namespace crossdock {

// A request enters the books, or its failure is reported and null returned.
Request* Engine::admit(const link::Task& task, RequestKind kind) {
  if (requests_.contains(task.sequence_id)) {
    fail(task.sequence_id, Status(StatusCode::kAlreadyExists, "sequence_id: already live"));
    return nullptr;
  }
  if (task.tenant_salt.size() > 64) {
    fail(task.sequence_id,
         Status(StatusCode::kInvalidArgument,
                "tenant_salt: at most 64 bytes, not " + std::to_string(task.tenant_salt.size())));
    return nullptr;
  }
  const ModelConfig& model = executor_->model();
  const BlockHash root =
      root_hash(task.tenant_salt, executor_->layout().model, "", executor_->numerics_id());
  auto request = make_request(task, kind, root, model.eos_token_ids, model.vocab_size);
  if (!request.ok()) {
    fail(task.sequence_id, request.status());
    return nullptr;
  }
  request.value().accepted_ns = now_ns();
  if (config_.mla_prefill == MlaPrefill::kExpanded) {
    request.value().first_generated = request.value().num_prompt_tokens - task.num_generated_tokens;
  }
  return &(requests_[task.sequence_id] = std::move(request).value());
}

void Engine::on(link::Generate& command) {
  Request* request = admit(command.task, RequestKind::kLocal);
  if (request == nullptr) return;
  const SequenceId id = request->sequence_id;
  Status status = scheduler_.submit({.id = id,
                                     .role = SequenceRole::kLocal,
                                     .prompt = std::move(command.task.prompt),
                                     .max_new_tokens = request->sampling.max_tokens,
                                     .root = request->root,
                                     .first_generated = request->first_generated});
  if (!status.ok()) fail(id, status);
}

void Engine::on(link::Expect& command) {
  Request* request = admit(command.task, RequestKind::kReceiver);
  if (request == nullptr) return;
  request->handoff = {command.handoff_high, command.handoff_low};
  if (receiving_.contains(request->handoff)) {
    return fail(request->sequence_id,
                Status(StatusCode::kAlreadyExists, "handoff_id: already live"));
  }
  request->prompt = std::move(command.task.prompt);
  receiving_.emplace(request->handoff, Receiving{.sequence_id = request->sequence_id,
                                                 .source_epoch = command.source_epoch});
  tell(handoff_event::Expect{request->handoff, command.attempt, command.source_epoch,
                             request->num_prompt_tokens});
}

void Engine::on(link::Prefill& command) {
  Request* request = admit(command.task, RequestKind::kSender);
  if (request == nullptr) return;
  const SequenceId id = request->sequence_id;
  const HandoffId handoff{command.handoff_high, command.handoff_low};
  const Peer* peer = peers_.find(command.peer_id);
  if (peer == nullptr || peer->store || peer->state != PeerState::kReady) {
    return fail(id,
                Status(StatusCode::kUnavailable, "peer_id: no decode engine is connected as peer " +
                                                     std::to_string(command.peer_id)));
  }
  if (senders_.find(handoff) != nullptr) {
    return fail(id, Status(StatusCode::kAlreadyExists, "handoff_id: already live"));
  }
  request->handoff = handoff;
  Submission submission{.id = id,
                        .role = SequenceRole::kSource,
                        .prompt = std::move(command.task.prompt),
                        .max_new_tokens = 1,
                        .root = request->root,
                        .first_generated = request->first_generated};
  std::vector<BlockHash> chain;
  // The last token's logits are needed, so its block is never taken from a cache.
  extend_chain(request->root,
               std::span<const int32_t>(submission.prompt).first(submission.prompt.size() - 1),
               request->first_generated, chain);
  const bool has_store = config_.store && peers_.store() != nullptr;
  const bool awaits_load = has_store && scheduler_.tree().match_length(chain) < chain.size();
  const Senders::Target target{command.peer_id, peer->format.layout, peer->format == format()};
  submission.awaits_load = awaits_load;
  submission.awaits_grant = senders_.may_read(target, chain);
  senders_.prepare(handoff, id, target);
  tell(handoff_event::Prepare{handoff, command.attempt, command.peer_id,
                              request->num_prompt_tokens});
  // Refused, since the id was used before: its end is reported, and `request` is gone.
  if (senders_.find(handoff) == nullptr) return;
  Status status = scheduler_.submit(std::move(submission));
  if (!status.ok()) return tell(handoff_event::Cancel{handoff, status});
  if (awaits_load) store_.look_up(id, chain, tick());
}

void Engine::on(link::Cancel& command) {
  fail(command.sequence_id, Status(StatusCode::kCancelled, "cancelled by the caller"));
}

// Ends a living request (or one that never came to live) with an error, exactly once.
void Engine::fail(SequenceId id, const Status& status) {
  auto it = requests_.find(id);
  const link::Ended ended{
      .sequence_id = id, .code = static_cast<uint8_t>(status.code()), .message = status.message()};
  if (it == requests_.end()) {
    // A cancel that crossed the end of its sequence needs no second end.
    if (status.code() != StatusCode::kCancelled) emit(ended);
    return;
  }
  const RequestKind kind = it->second.kind;
  const HandoffId handoff = it->second.handoff;
  if (kind == RequestKind::kSender && senders_.find(handoff) != nullptr) {
    // The table decides when its blocks may go, and Finished then reports the end.
    return tell(handoff_event::Cancel{handoff, status});
  }
  requests_.erase(it);
  const auto receiving = receiving_.find(handoff);
  if (kind == RequestKind::kReceiver && receiving != receiving_.end() &&
      receiving->second.sequence_id == id) {
    tell(handoff_event::End{handoff, status});
    if (!holds_reservation(id)) receiving_.erase(handoff);
  }
  release(id);
  emit(ended);
}

// The sequence finished well: its last token is in tokens_.
void Engine::end_request(SequenceId id) {
  const Request& request = requests_.at(id);
  const RequestKind kind = request.kind;
  const HandoffId handoff = request.handoff;
  requests_.erase(id);
  release(id);
  if (kind == RequestKind::kReceiver) {
    tell(handoff_event::End{handoff, Status()});
    receiving_.erase(handoff);
  }
}

// Gives the sequence's blocks back, unless somebody may still write them: a reservation in
// quarantine waits for its proof, a load for its reads, a step for its end.
void Engine::release(SequenceId id) {
  if (!scheduler_.contains(id)) return;
  if (holds_reservation(id)) return;
  if (store_.cancel(id)) return;
  if (in_step_) {
    to_release_.insert(id);
  } else {
    scheduler_.finish(id);
  }
}

// A peer was told of these blocks and may still write them.
bool Engine::holds_reservation(SequenceId id) const {
  if (!scheduler_.contains(id)) return false;
  const SequenceState state = scheduler_.state(id);
  return state == SequenceState::kReserved || state == SequenceState::kQuarantined;
}

void Engine::on(link::ConnectPeer& command) {
  auto connect = peers_.add(command, format());
  if (connect.ok()) return transfer_->submit(std::move(connect).value());
  emit(link::PeerDown{.peer_id = command.peer_id,
                      .closed = true,
                      .code = static_cast<uint8_t>(connect.status().code()),
                      .message = connect.status().message()});
}

void Engine::on(link::DisconnectPeer& command) {
  if (peers_.find(command.peer_id) == nullptr) {
    return emit(link::PeerDown{.peer_id = command.peer_id, .closed = true});
  }
  break_pair(command.peer_id, Status(StatusCode::kUnavailable, "disconnected by the front"));
}

void Engine::on(link::PeerLost& command) { tell(handoff_event::PeerLost{command.epoch}); }

void Engine::on(link::StoreFound& command) { store_.found(command); }

void Engine::on(link::StorePlaces& command) { store_.places(command, tick()); }

void Engine::on(link::QueryStatus&) {
  const BlockPool& pool = scheduler_.pool();
  link::StatusReport report{.num_blocks = pool.num_blocks(),
                            .num_free = pool.num_free(),
                            .num_owned = pool.num_owned(),
                            .num_cached = pool.num_cached(),
                            .num_quarantined = pool.num_quarantined(),
                            .quarantined_blocks_max = scheduler_.quarantined_blocks_max(),
                            .num_running = scheduler_.num_running(),
                            .num_waiting = scheduler_.num_waiting(),
                            .num_handoffs = table_.num_live(),
                            .num_steps = num_steps_};
  for (const auto& [id, request] : requests_) {
    if (!scheduler_.contains(id)) continue;
    const uint32_t computed = scheduler_.num_computed(id);
    if (computed < request.num_prompt_tokens) {
      report.queued_tokens += request.num_prompt_tokens - computed;
    }
  }
  report.counters = {{"generated_tokens", num_generated_tokens_},
                     {"computed_tokens", num_computed_tokens_},
                     {"cached_unreferenced_blocks", pool.num_cached_unreferenced()},
                     {"store_blocks_read", store_.num_blocks_read()},
                     {"store_blocks_written", store_.num_blocks_written()},
                     {"store_blocks_bad", store_.num_blocks_bad()},
                     {"store_reads_declined", store_.num_reads_declined()}};
  for (const auto& [name, field] : pair_traffic_fields()) {
    const std::string_view text = name;
    const std::string_view what = text.starts_with("num_") ? text.substr(4) : text;
    report.counters.push_back({"pairs_" + std::string(what), senders_.ledger().total().*field});
  }
  for (const auto& [id, peer] : peers_.all()) {
    if (peer.store) continue;
    const PairTraffic traffic = senders_.ledger().traffic(id);
    link::PairReport& pair = report.pairs.emplace_back(link::PairReport{.peer_id = id});
    for (const auto& [name, field] : pair_traffic_fields()) {
      pair.counters.push_back({name, traffic.*field});
    }
  }
  for (const auto& [state, count] : table_.num_by_state()) {
    report.counters.push_back({std::string("handoffs_") + state, count});
  }
  for (const auto& [name, counter] : kHandoffCounters) {
    report.counters.push_back({std::string("handoff_") + name, table_.counters().*counter});
  }
  emit(report);
}

void Engine::on(link::Shutdown&) { stopped_ = true; }

}  // namespace crossdock
