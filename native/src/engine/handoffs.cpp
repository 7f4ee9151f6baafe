// What the transfer thread reports, and what the handoff table decides of it.

#include <cassert>

#include "crossdock/engine/engine.h"

namespace crossdock {

// ---- the transfer thread ----------------------------------------------------------------------

void Engine::on(OperationDone& event) {
  if (const auto store = store_.on_done(event, tick())) {
    if (!event.status.ok()) break_pair(*store, event.status);
    return;
  }
  const auto handoff = senders_.on_done(event, tick());
  if (handoff.has_value()) settle(*handoff);
}

void Engine::on(MessageArrived& event) {
  const Peer* peer = peers_.find(event.peer);
  if (peer == nullptr || peer->state != PeerState::kReady || peer->store) return;
  tell(receive(event.peer, event.message, peer->key, peer->epoch));
}

void Engine::on(PeerReady& event) {
  Peer* peer = peers_.find(event.peer);
  if (peer == nullptr || peer->state != PeerState::kConnecting) return;
  peer->state = PeerState::kReady;
  peer->transport = event.transport;
  if (peer->store) {
    store_.store_connected();
  } else {
    tell(handoff_event::PairUp{peer->id, peer->epoch, peer->incarnation});
  }
  const bool shared = event.shared_memory == SharedMemory::kUsed;
  emit(link::PeerConnected{.peer_id = event.peer,
                           .transport = std::string(name(event.transport)),
                           .not_shared = std::string(shared ? "" : describe(event.shared_memory)),
                           .staged = event.staged});
}

void Engine::on(PeerBroken& event) { break_pair(event.peer, event.status); }

// Nothing of ours is in flight, which the front may know at once; the pair itself is kept until
// nothing of theirs can land either.
void Engine::on(PeerClosed& event) {
  Peer* peer = peers_.find(event.peer);
  if (peer == nullptr) return;
  if (!peer->store) tell(handoff_event::PairClosed{event.peer, event.writes_stopped});
  senders_.ledger().forget(event.peer);
  if (peer->state != PeerState::kClosed) {
    peer->state = PeerState::kClosed;
    emit(link::PeerDown{.peer_id = event.peer, .closed = true});
  }
  if (event.writes_stopped) peers_.forget(event.peer);
}

// Revokes and aborts everything on the pair, tells the front, and closes our side of it.
void Engine::break_pair(PeerId id, const Status& status) {
  Peer* peer = peers_.find(id);
  const bool open = peer != nullptr &&
                    (peer->state == PeerState::kConnecting || peer->state == PeerState::kReady);
  if (!open) return;
  peer->state = PeerState::kClosing;
  if (!peer->store) tell(handoff_event::PairBroken{id});
  emit(link::PeerDown{.peer_id = id,
                      .closed = false,
                      .code = static_cast<uint8_t>(status.code()),
                      .message = status.message()});
  transfer_->submit(Disconnect{id});
}

void Engine::settle(const HandoffId& id) {
  auto event = senders_.settle(id);
  if (!event.has_value()) return;
  const auto* failed = std::get_if<handoff_event::WritesFailed>(&*event);
  const PairId pair = senders_.find(id)->pair;
  const Status status = failed != nullptr ? failed->status : Status();
  tell(std::move(*event));
  // An endpoint that failed a write proves nothing any more: only its end does.
  if (!status.ok()) break_pair(pair, status);
}

// ---- the handoff table ------------------------------------------------------------------------

// Acting on a decision may raise further events; they are told in turn, never within each other.
void Engine::tell(HandoffEvent event) {
  untold_.push_back(std::move(event));
  if (telling_) return;
  telling_ = true;
  for (size_t i = 0; i < untold_.size(); ++i) {
    std::vector<HandoffAction> actions;
    const HandoffEvent next = std::move(untold_[i]);
    table_.on(next, tick(), actions);
    for (HandoffAction& action : actions) {
      std::visit([this](auto& a) { act(a); }, action);
    }
  }
  untold_.clear();
  telling_ = false;
}

void Engine::act(handoff_action::Send& action) {
  const PairKey& key = peers_.find(action.pair)->key;
  transfer_->submit(
      Notify{action.pair, seal(encode(action.message), key, transfer_->descriptor().epoch)});
}

void Engine::act(handoff_action::Reserve& action) {
  Receiving& receiving = receiving_.at(action.id);
  const SequenceId id = receiving.sequence_id;
  Request& request = requests_.at(id);
  const Peer* source = peers_.of_epoch(receiving.source_epoch);
  if (source != nullptr && source->format.layout.dtype != executor_->layout().dtype) {
    // Converted blocks are not what this engine would compute, so they are a chain of their own
    // that nothing else finds and that finds nothing else.
    request.root = root_hash(to_string(action.id), executor_->layout().model, "converted",
                             source->format.numerics_id + " to " + executor_->numerics_id());
  }
  auto grant = scheduler_.reserve({.id = id,
                                   .prompt = std::move(request.prompt),
                                   .max_new_tokens = request.sampling.max_tokens,
                                   .root = request.root,
                                   .first_generated = request.first_generated},
                                  tick());
  if (grant.ok()) {
    receiving.num_matched_blocks = grant.value().num_matched_blocks;
    tell(handoff_event::Reserved{action.id, Status(), grant.value().num_matched_blocks,
                                 std::move(grant.value().blocks)});
  } else {
    tell(handoff_event::Reserved{.id = action.id, .status = grant.status()});
  }
}

void Engine::act(handoff_action::Verify& action) {
  const Receiving& receiving = receiving_.at(action.id);
  const auto table = scheduler_.block_table(receiving.sequence_id);
  const auto found = checksum_blocks(executor_->layout(), transfer_->segment(),
                                     table.subspan(receiving.num_matched_blocks));
  tell(handoff_event::Verified{action.id, found == action.checksum});
}

void Engine::act(handoff_action::Activate& action) {
  const SequenceId id = receiving_.at(action.id).sequence_id;
  Request& request = requests_.at(id);
  const ChoiceState& choice = action.commit.choices.front();
  scheduler_.activate(id, choice.first_token, tick());
  accept_token(request, choice.first_token, request.num_prompt_tokens,
               {choice.digest_low, choice.digest_high});
}

void Engine::act(handoff_action::Quarantine& action) {
  scheduler_.quarantine(receiving_.at(action.id).sequence_id);
}

void Engine::act(handoff_action::EndQuarantine& action) {
  scheduler_.end_quarantine(receiving_.at(action.id).sequence_id);
  receiving_.erase(action.id);
}

void Engine::act(handoff_action::DropReservation& action) {
  auto it = receiving_.find(action.id);
  if (it == receiving_.end()) return;
  if (scheduler_.contains(it->second.sequence_id)) scheduler_.finish(it->second.sequence_id);
  receiving_.erase(it);
}

void Engine::act(handoff_action::Lost& action) {
  auto it = receiving_.find(action.id);
  if (it == receiving_.end()) return;
  const SequenceId id = it->second.sequence_id;
  if (requests_.erase(id) != 0) {
    emit(link::Ended{.sequence_id = id,
                     .code = static_cast<uint8_t>(action.reason.code()),
                     .message = action.reason.message()});
  }
  // Blocks that are reserved stay with the entry until DropReservation or EndQuarantine.
  if (!holds_reservation(id)) receiving_.erase(it);
}

void Engine::act(handoff_action::StartWrites& action) {
  senders_.grant(action, tick());
  settle(action.id);
}

void Engine::act(handoff_action::StopWrites& action) {
  senders_.stop(action.id);
  release(senders_.find(action.id)->sequence_id);
  settle(action.id);
}

void Engine::act(handoff_action::Finished& action) {
  const Sending* sending = senders_.find(action.id);
  if (sending == nullptr) return;
  const SequenceId id = sending->sequence_id;
  auto it = requests_.find(id);
  if (it != requests_.end()) {
    const Request& request = it->second;
    if (action.status.ok()) {
      const uint64_t exposed_ns = now_ns() - request.computed_ns;
      senders_.ledger().count(sending->pair, &PairTraffic::num_handoffs);
      senders_.ledger().count(sending->pair, &PairTraffic::exposed_ns, exposed_ns);
      emit(link::HandoffDone{.sequence_id = id,
                             .first_token = sending->choice.first_token,
                             .position = request.num_prompt_tokens,
                             .digest_low = sending->choice.digest_low,
                             .digest_high = sending->choice.digest_high,
                             .num_cached_tokens = scheduler_.num_cached_tokens(id),
                             .queue_ns = request.started_ns - request.accepted_ns,
                             .prefill_ns = request.computed_ns - request.started_ns,
                             .handoff_ns = exposed_ns,
                             .handoff_bytes = sending->num_bytes,
                             .num_transfers = sending->num_transfers,
                             .transfer_ns = sending->transfer_ns});
    } else {
      emit(link::Ended{.sequence_id = id,
                       .code = static_cast<uint8_t>(action.status.code()),
                       .message = action.status.message()});
    }
    requests_.erase(it);
  }
  senders_.finish(action.id);
  release(id);
}

void Engine::act(handoff_action::BreakPair& action) {
  // What a peer did wrong is no fault of the requests on its pair: they may be tried again.
  break_pair(action.pair, Status(StatusCode::kUnavailable, action.reason));
}

}  // namespace crossdock
