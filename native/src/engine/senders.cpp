#include "crossdock/engine/senders.h"

#include <algorithm>
#include <cassert>

namespace crossdock {
namespace {

// What a handoff sends goes out in about this many groups. Where computing takes as long as
// sending, the last group is what is exposed: three per cent, and more where the two do not run
// evenly. Smaller groups than the least one gain less than their operations cost.
constexpr uint64_t kGroups = 32;
constexpr uint64_t kGroupBytesMin = 1u << 20;
// A peer answers between two of its layers, a few milliseconds on a CPU. The wait is worth a read
// of many blocks; one that takes longer than computing some of them is not.
constexpr uint64_t kGrantWaitTicks = 100'000;
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

bool Senders::may_read(const Target& target, std::span<const BlockHash> chain) const {
  return target.readable && scheduler_.tree().match_length(chain) < chain.size() &&
         ledger_.may_hold_more(target.pair, chain);
}

void Senders::prepare(const HandoffId& id, SequenceId sequence_id, const Target& target) {
  sendings_.emplace(id, Sending{.id = id,
                                .sequence_id = sequence_id,
                                .pair = target.pair,
                                .target = target.layout,
                                .converts = target.layout.dtype != layout_.dtype,
                                .readable = target.readable,
                                .stream = next_stream_++});
}

void Senders::opened(const HandoffId& id, uint64_t tick) {
  Sending& sending = at(id);
  if (scheduler_.awaits_grant(sending.sequence_id)) {
    sending.grant_deadline_tick = tick + kGrantWaitTicks;
  }
}

void Senders::grant(const handoff_action::StartWrites& action, uint64_t tick) {
  Sending& sending = at(action.id);
  sending.granted = true;
  sending.num_matched_blocks = action.num_matched_blocks;
  sending.targets = action.blocks;
  sending.next_block = action.num_matched_blocks;
  if (sending.computed) {
    post_blocks(sending, static_cast<uint32_t>(sending.targets.size()));
  } else {
    post_blocks(sending, scheduler_.num_computed(sending.sequence_id) / kBlockTokens);
    consider_read(sending, tick);
  }
}

void Senders::post_complete(const HandoffId& id, uint64_t tick) {
  Sending& sending = at(id);
  if (!sending.granted || sending.stopping) return;
  post_blocks(sending, scheduler_.num_computed(sending.sequence_id) / kBlockTokens);
  consider_read(sending, tick);
}

// Layers in one group of a chunk that completes this many blocks.
uint32_t Senders::group_layers(const Sending& sending, uint32_t num_blocks) const {
  const uint64_t num_sent = sending.targets.size() - sending.num_matched_blocks;
  const uint64_t bytes = std::max(num_sent * layout_.block_bytes() / kGroups, kGroupBytesMin);
  const uint64_t layer_bytes = num_blocks * layout_.layer_bytes();
  return static_cast<uint32_t>(
      std::min<uint64_t>((bytes + layer_bytes - 1) / layer_bytes, layout_.num_layers));
}

void Senders::post_layers(const HandoffId& id, uint32_t end_block, uint32_t num_layers_done) {
  Sending& sending = at(id);
  if (!sending.granted || sending.stopping || sending.converts) return;
  if (end_block <= sending.next_block) return;
  const uint32_t group = group_layers(sending, end_block - sending.next_block);
  const bool last = num_layers_done == layout_.num_layers;
  if (num_layers_done - sending.next_layer < group && !last) return;
  post_range(sending, end_block, num_layers_done);
}

// Of the blocks before end_block, the layers before end_layer that are not out yet.
void Senders::post_range(Sending& sending, uint32_t end_block, uint32_t end_layer) {
  const auto sources = scheduler_.block_table(sending.sequence_id);
  assert(end_block <= sources.size() && end_block <= sending.targets.size());
  const bool last = end_layer == layout_.num_layers;
  const size_t offset = sending.next_layer * layout_.layer_bytes();
  // To the end of the stride, so that whole blocks that lie side by side are one span.
  const size_t end = last ? layout_.stride_bytes() : end_layer * layout_.layer_bytes();
  std::vector<CopySpan> spans;
  for (uint32_t b = sending.next_block; b < end_block; ++b) {
    spans.push_back({sources[b] * layout_.stride_bytes() + offset,
                     sending.targets[b] * layout_.stride_bytes() + offset, end - offset});
  }
  sending.next_layer = last ? 0 : end_layer;
  if (last) sending.next_block = end_block;
  post(sending, std::move(spans));
}

void Senders::post_rest(const HandoffId& id, const ChoiceState& choice) {
  Sending& sending = at(id);
  if (sending.stopping) return;  // its sequence is released
  sending.computed = true;
  sending.choice = choice;
  const auto chain = scheduler_.chain(sending.sequence_id);
  const uint32_t num_whole = scheduler_.num_computed(sending.sequence_id) / kBlockTokens;
  if (num_whole > 0) ledger_.handed_off(sending.pair, chain[num_whole - 1]);
  if (!sending.granted) return;
  post_blocks(sending, static_cast<uint32_t>(sending.targets.size()));
}

// Blocks before end_block are final. The last of them are followed by the fence.
void Senders::post_blocks(Sending& sending, uint32_t end_block) {
  if (sending.converts) {
    sending.ready_blocks = end_block;
    return post_converted(sending);
  }
  if (end_block > sending.next_block) post_range(sending, end_block, layout_.num_layers);
  if (sending.computed) fence_if_due(sending);
}

// ---- reads --------------------------------------------------------------------------------------

void Senders::consider_read(Sending& sending, uint64_t tick) {
  if (sending.stopping || sending.computed || sending.read != 0) return;
  const uint32_t num_computed = scheduler_.num_computed(sending.sequence_id);
  // The block of the last token is computed, for its logits, whatever a grant says.
  const auto num_tokens = static_cast<uint32_t>(scheduler_.tokens(sending.sequence_id).size());
  const uint32_t end_block = std::min(sending.num_matched_blocks, (num_tokens - 1) / kBlockTokens);
  const uint32_t end_position = end_block * kBlockTokens;
  bool reads = sending.readable && !sending.declined && end_position > num_computed;
  if (reads) {
    const uint32_t num_blocks = end_block - num_computed / kBlockTokens;
    const double compute_ticks =
        scheduler_.predicted_prompt_ticks(num_computed, end_position - num_computed);
    const double read_ns =
        ledger_.speed(sending.pair).predicted_ns(num_blocks * layout_.stride_bytes());
    reads = reading_pays(read_ns, compute_ticks);
    sending.declined = !reads;
    if (!reads) ledger_.count(sending.pair, &PairTraffic::num_reads_declined);
  }
  if (!reads) return stop_waiting(sending, tick);
  if (const auto order = scheduler_.load_more(sending.sequence_id, end_block)) {
    read(sending, *order);
  }
}

void Senders::stop_waiting(Sending& sending, uint64_t tick) {
  sending.grant_deadline_tick = UINT64_MAX;
  if (scheduler_.awaits_grant(sending.sequence_id)) {
    scheduler_.loaded(sending.sequence_id, 0, tick);
  }
}

void Senders::read(Sending& sending, const LoadOrder& order) {
  sending.grant_deadline_tick = UINT64_MAX;
  sending.read = next_operation_++;
  sending.num_blocks_reading = order.num_blocks;
  operations_.emplace(sending.read, sending.id);
  ++sending.num_outstanding;
  const auto table = scheduler_.block_table(sending.sequence_id);
  ReadSpans read{.operation = sending.read, .peer = sending.pair, .stream = sending.stream};
  for (uint32_t b = order.first_block; b < order.first_block + order.num_blocks; ++b) {
    read.spans.push_back({table[b] * layout_.stride_bytes(),
                          sending.targets[b] * layout_.stride_bytes(), layout_.stride_bytes()});
  }
  transfer_.submit(std::move(read));
}

// A read that failed says nothing about the handoff: if the pair is broken, that is reported by
// itself.
void Senders::finish_read(Sending& sending, const Status& status, uint64_t tick) {
  const uint32_t num_blocks = status.ok() ? sending.num_blocks_reading : 0;
  ledger_.count(sending.pair, &PairTraffic::num_blocks_read, num_blocks);
  if (!status.ok()) ledger_.count(sending.pair, &PairTraffic::num_reads_failed);
  sending.read = 0;
  sending.declined |= !status.ok();
  if (!sending.stopping) scheduler_.loaded(sending.sequence_id, num_blocks, tick);
}

void Senders::expire(uint64_t tick) {
  for (auto& [id, sending] : sendings_) {
    if (sending.grant_deadline_tick <= tick) stop_waiting(sending, tick);
  }
}

uint64_t Senders::next_tick() const {
  uint64_t next = UINT64_MAX;
  for (const auto& [id, sending] : sendings_) next = std::min(next, sending.grant_deadline_tick);
  return next;
}

// ---- operations ---------------------------------------------------------------------------------

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
  transfer_.submit(WriteSpans{operation, sending.pair, std::move(spans), sending.stream});
  return operation;
}

void Senders::fence_if_due(Sending& sending) {
  if (sending.fenced) return;
  sending.fenced = true;
  const OperationId operation = next_operation_++;
  operations_.emplace(operation, sending.id);
  ++sending.num_outstanding;
  transfer_.submit(Fence{operation, sending.pair, sending.stream});
}

void Senders::stop(const HandoffId& id) {
  Sending& sending = at(id);
  if (sending.stopping) return;
  sending.stopping = true;
  sending.grant_deadline_tick = UINT64_MAX;
  if (!sending.posted && sending.num_outstanding == 0) return;
  if (scheduler_.contains(sending.sequence_id)) {
    const auto sources = scheduler_.block_table(sending.sequence_id);
    sending.pinned.assign(sources.begin(), sources.end());
    scheduler_.pin(sending.pinned);
  }
  // A write that is done here may still be on its way to the peer: only a fence proves that it is
  // in, and a stopped sender posts nothing after it. A read that is done here is over.
  if (sending.posted) fence_if_due(sending);
}

std::optional<HandoffId> Senders::on_done(const OperationDone& done, uint64_t tick) {
  auto it = operations_.find(done.operation);
  if (it == operations_.end()) return std::nullopt;
  const HandoffId id = it->second;
  operations_.erase(it);
  Sending& sending = at(id);
  --sending.num_outstanding;
  ledger_.speed(sending.pair).observe(done.bytes, done.duration_ns);
  ledger_.count(sending.pair, &PairTraffic::num_operations, done.num_transfers);
  if (done.operation == sending.read) {
    ledger_.count(sending.pair, &PairTraffic::bytes_read, done.bytes);
    finish_read(sending, done.status, tick);
    return id;
  }
  ledger_.count(sending.pair, &PairTraffic::bytes_written, done.bytes);
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
