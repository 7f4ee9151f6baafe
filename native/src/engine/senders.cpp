#include "crossdock/engine/senders.h"

#include <xxhash.h>

#include <cassert>
#include <cstring>

namespace crossdock {
namespace {

// Layers of the last chunk go out in this many groups. More groups overlap more and cost more
// operations; with four, a quarter of the last chunk's bytes is exposed after the last layer.
constexpr uint32_t kLayerGroups = 4;

}  // namespace

std::array<uint8_t, 16> checksum_blocks(const KvLayout& layout, std::span<const std::byte> slab,
                                        std::span<const BlockId> blocks) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  for (const BlockId block : blocks) {
    XXH3_128bits_update(state, slab.data() + block * layout.stride_bytes(), layout.block_bytes());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  std::array<uint8_t, 16> bytes;
  std::memcpy(bytes.data(), &hash.low64, 8);
  std::memcpy(bytes.data() + 8, &hash.high64, 8);
  return bytes;
}

Senders::Senders(const KvLayout& layout, Scheduler& scheduler, TransferThread& transfer,
                 bool checksum)
    : layout_(layout), scheduler_(scheduler), transfer_(transfer), checksum_(checksum) {}

Sending& Senders::at(const HandoffId& id) {
  auto it = sendings_.find(id);
  assert(it != sendings_.end());
  return it->second;
}

const Sending* Senders::find(const HandoffId& id) const {
  auto it = sendings_.find(id);
  return it == sendings_.end() ? nullptr : &it->second;
}

void Senders::prepare(const HandoffId& id, SequenceId sequence_id, PairId pair) {
  sendings_.emplace(id, Sending{.id = id, .sequence_id = sequence_id, .pair = pair});
}

void Senders::grant(const handoff_action::StartWrites& action) {
  Sending& sending = at(action.id);
  sending.granted = true;
  sending.num_matched_blocks = action.num_matched_blocks;
  sending.targets = action.blocks;
  sending.next_block = action.num_matched_blocks;
  if (sending.computed) {
    post_blocks(sending, static_cast<uint32_t>(sending.targets.size()));
    fence_if_due(sending);
  }
}

void Senders::post_complete(const HandoffId& id) {
  Sending& sending = at(id);
  if (!sending.granted || sending.stopping) return;
  post_blocks(sending, scheduler_.num_computed(sending.sequence_id) / kBlockTokens);
}

void Senders::post_layers(const HandoffId& id, uint32_t num_layers_done) {
  Sending& sending = at(id);
  if (!sending.granted || sending.stopping) return;
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
  post(sending, std::move(spans));
}

void Senders::post_rest(const HandoffId& id, const ChoiceState& choice) {
  Sending& sending = at(id);
  sending.computed = true;
  sending.choice = choice;
  if (!sending.granted || sending.stopping) return;
  post_blocks(sending, static_cast<uint32_t>(sending.targets.size()));
  fence_if_due(sending);
}

void Senders::post_blocks(Sending& sending, uint32_t end_block) {
  if (end_block <= sending.next_block) return;
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

void Senders::post(Sending& sending, std::vector<CopySpan> spans) {
  if (spans.empty()) return;
  sending.posted = true;
  const OperationId operation = next_operation_++;
  operations_.emplace(operation, sending.id);
  ++sending.num_outstanding;
  transfer_.submit(WriteSpans{operation, sending.pair, std::move(spans)});
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
  return id;
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
  sendings_.erase(it);
}

}  // namespace crossdock
