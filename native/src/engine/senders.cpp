#include "crossdock/engine/senders.h"

#include <cassert>

namespace crossdock {
namespace {

// Layers of the last chunk go out in this many groups. More groups overlap more and cost more
// operations; with four, a quarter of the last chunk's bytes is exposed after the last layer.
constexpr uint32_t kLayerGroups = 4;
// Blocks converted into one write: half the slots, so that the next write fills while this one
// goes.
constexpr uint32_t kStagedBlocks = Staging::kSlots / 2;

}  // namespace

Senders::Senders(const KvLayout& layout, Scheduler& scheduler, Transfers& transfer, bool checksum)
    : layout_(layout),
      scheduler_(scheduler),
      transfer_(transfer),
      checksum_(checksum),
      staging_(layout, transfer.segment()) {}

Sending& Senders::at(const HandoffId& id) {
  auto it = sendings_.find(id);
  assert(it != sendings_.end());
  return it->second;
}

const Sending* Senders::find(const HandoffId& id) const {
  auto it = sendings_.find(id);
  return it == sendings_.end() ? nullptr : &it->second;
}

void Senders::prepare(const HandoffId& id, SequenceId sequence_id, PairId pair,
                      const KvLayout& target) {
  sendings_.emplace(id, Sending{.id = id,
                                .sequence_id = sequence_id,
                                .pair = pair,
                                .target = target,
                                .converts = target.dtype != layout_.dtype});
}

void Senders::grant(const handoff_action::StartWrites& action) {
  Sending& sending = at(action.id);
  sending.granted = true;
  sending.num_matched_blocks = action.num_matched_blocks;
  sending.targets = action.blocks;
  sending.next_block = action.num_matched_blocks;
  if (sending.computed) post_blocks(sending, static_cast<uint32_t>(sending.targets.size()));
}

void Senders::post_complete(const HandoffId& id) {
  Sending& sending = at(id);
  if (!sending.granted || sending.stopping) return;
  post_blocks(sending, scheduler_.num_computed(sending.sequence_id) / kBlockTokens);
}

void Senders::post_layers(const HandoffId& id, uint32_t num_layers_done) {
  Sending& sending = at(id);
  if (!sending.granted || sending.stopping || sending.converts) return;
  const uint32_t group = (layout_.num_layers + kLayerGroups - 1) / kLayerGroups;
  const bool last = num_layers_done == layout_.num_layers;
  if (num_layers_done - sending.next_layer < group && !last) return;
  const auto sources = scheduler_.block_table(sending.sequence_id);
  const auto end_block = static_cast<uint32_t>(sending.targets.size());
  const size_t offset = sending.next_layer * layout_.layer_bytes();
  const size_t length = (num_layers_done - sending.next_layer) * layout_.layer_bytes();
  std::vector<CopySpan> spans;
  for (uint32_t b = sending.next_block; b < end_block; ++b) {
    spans.push_back({sources[b] * layout_.stride_bytes() + offset,
                     sending.targets[b] * layout_.stride_bytes() + offset, length});
  }
  sending.next_layer = num_layers_done;
  if (last) {
    sending.next_block = end_block;
    sending.next_layer = 0;
  }
  if (!spans.empty()) post(sending, std::move(spans));
}

void Senders::post_rest(const HandoffId& id, const ChoiceState& choice) {
  Sending& sending = at(id);
  sending.computed = true;
  sending.choice = choice;
  if (!sending.granted || sending.stopping) return;
  post_blocks(sending, static_cast<uint32_t>(sending.targets.size()));
}

// Blocks before end_block are final. The last of them are followed by the fence.
void Senders::post_blocks(Sending& sending, uint32_t end_block) {
  if (sending.converts) {
    sending.ready_blocks = end_block;
    return post_converted(sending);
  }
  if (end_block > sending.next_block) {
    const auto sources = scheduler_.block_table(sending.sequence_id);
    assert(end_block <= sources.size() && end_block <= sending.targets.size());
    // Layers before next_layer of these blocks may be out already (a step that was the last chunk
    // but whose grant came in its middle): only the rest goes.
    const size_t offset = sending.next_layer * layout_.layer_bytes();
    const size_t length = layout_.stride_bytes() - offset;
    std::vector<CopySpan> spans;
    for (uint32_t b = sending.next_block; b < end_block; ++b) {
      spans.push_back({sources[b] * layout_.stride_bytes() + offset,
                       sending.targets[b] * layout_.stride_bytes() + offset, length});
    }
    sending.next_block = end_block;
    sending.next_layer = 0;
    post(sending, std::move(spans));
  }
  if (sending.computed) fence_if_due(sending);
}

void Senders::post_converted(Sending& sending) {
  while (sending.next_block < sending.ready_blocks) {
    const auto sources = scheduler_.block_table(sending.sequence_id);
    std::vector<CopySpan> spans;
    std::vector<uint64_t> slots;
    while (sending.next_block < sending.ready_blocks && slots.size() < kStagedBlocks) {
      const uint32_t b = sending.next_block;
      const auto slot = staging_.convert(sources[b] * layout_.stride_bytes(), sending.target);
      if (!slot.has_value()) break;
      if (checksum_) sending.converted.add(sending.target, transfer_.segment().data() + *slot);
      spans.push_back({*slot, sending.targets[b] * sending.target.stride_bytes(),
                       sending.target.block_bytes()});
      slots.push_back(*slot);
      ++sending.next_block;
    }
    if (slots.empty()) return await_slot(sending);
    staged_.emplace(post(sending, std::move(spans)), std::move(slots));
  }
  if (sending.computed) fence_if_due(sending);
}

void Senders::await_slot(Sending& sending) {
  if (!sending.waits_for_slot) waiting_.push_back(sending.id);
  sending.waits_for_slot = true;
}

OperationId Senders::post(Sending& sending, std::vector<CopySpan> spans) {
  sending.posted = true;
  const OperationId operation = next_operation_++;
  operations_.emplace(operation, sending.id);
  ++sending.num_outstanding;
  transfer_.submit(WriteSpans{operation, sending.pair, std::move(spans)});
  return operation;
}

void Senders::fence_if_due(Sending& sending) {
  if (sending.fenced) return;
  sending.fenced = true;
  const OperationId operation = next_operation_++;
  operations_.emplace(operation, sending.id);
  ++sending.num_outstanding;
  transfer_.submit(Fence{operation, sending.pair});
}

void Senders::stop(const HandoffId& id) {
  Sending& sending = at(id);
  if (sending.stopping) return;
  sending.stopping = true;
  if (!sending.posted && sending.num_outstanding == 0) return;
  if (scheduler_.contains(sending.sequence_id)) {
    const auto sources = scheduler_.block_table(sending.sequence_id);
    sending.pinned.assign(sources.begin(), sources.end());
    scheduler_.pin(sending.pinned);
  }
  // A write that is done here may still be on its way to the peer: only a fence proves that it is
  // in, and a stopped sender posts nothing after it.
  fence_if_due(sending);
}

std::optional<HandoffId> Senders::on_done(const OperationDone& done) {
  auto it = operations_.find(done.operation);
  if (it == operations_.end()) return std::nullopt;
  const HandoffId id = it->second;
  operations_.erase(it);
  Sending& sending = at(id);
  --sending.num_outstanding;
  sending.num_bytes += done.bytes;
  sending.num_transfers += done.num_transfers;
  sending.transfer_ns += done.duration_ns;
  if (!done.status.ok() && sending.failure.ok()) sending.failure = done.status;
  release_staged(sending, done);
  return id;
}

// The slots of a write that is done are free; those of one that failed may still be read.
void Senders::release_staged(Sending& sending, const OperationDone& done) {
  auto it = staged_.find(done.operation);
  if (it == staged_.end()) return;
  if (done.status.ok()) {
    for (const uint64_t slot : it->second) staging_.release(slot);
  } else {
    sending.held.insert(sending.held.end(), it->second.begin(), it->second.end());
  }
  staged_.erase(it);
  serve_waiting();
}

void Senders::serve_waiting() {
  while (!waiting_.empty() && staging_.num_free() > 0) {
    auto it = sendings_.find(waiting_.front());
    waiting_.pop_front();
    if (it == sendings_.end()) continue;
    it->second.waits_for_slot = false;
    if (!it->second.stopping) post_converted(it->second);
  }
}

std::optional<HandoffEvent> Senders::settle(const HandoffId& id) {
  const Sending& sending = at(id);
  if (sending.num_outstanding > 0) return std::nullopt;
  if (!sending.failure.ok()) return handoff_event::WritesFailed{id, sending.failure};
  if (sending.stopping) return handoff_event::WritesStopped{id};
  if (!sending.fenced) return std::nullopt;
  return handoff_event::WritesArrived{
      id, {sending.choice}, checksum_ ? checksum(sending) : std::array<uint8_t, 16>{}};
}

std::array<uint8_t, 16> Senders::checksum(const Sending& sending) const {
  if (sending.converts) return sending.converted.value();
  const auto sources = scheduler_.block_table(sending.sequence_id);
  return checksum_blocks(layout_, transfer_.segment(),
                         sources.subspan(sending.num_matched_blocks,
                                         sending.targets.size() - sending.num_matched_blocks));
}

void Senders::finish(const HandoffId& id) {
  auto it = sendings_.find(id);
  if (it == sendings_.end()) return;
  if (!it->second.pinned.empty()) scheduler_.unpin(it->second.pinned);
  // A late completion of a failed operation finds no owner and is ignored.
  std::erase_if(operations_, [&id](const auto& entry) { return entry.second == id; });
  for (const uint64_t slot : it->second.held) staging_.release(slot);
  sendings_.erase(it);
  serve_waiting();
}

}  // namespace crossdock
