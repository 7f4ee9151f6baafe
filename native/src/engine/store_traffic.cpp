#include "crossdock/engine/store_traffic.h"

#include <xxhash.h>

#include <algorithm>

namespace crossdock {
namespace {

// Operation ids of the store's traffic, apart from those of handoffs.
constexpr OperationId kFirstOperation = OperationId{1} << 62;
// The front bounds its own calls more tightly; this is for a front that never answers.
constexpr uint64_t kAnswerTicks = 500'000;
// A store that stops within a transfer holds a prompt no longer than this.
constexpr uint64_t kTransferTicks = 5'000'000;
// A write-back in flight pins its blocks: few at a time, few blocks each.
constexpr size_t kOffersMax = 8;
constexpr size_t kOfferBlocksMax = 64;
constexpr size_t kOfferedMax = 65536;

}  // namespace

StoreTraffic::StoreTraffic(const KvLayout& layout, Scheduler& scheduler, Transfers& transfer,
                           Emit emit)
    : layout_(layout),
      scheduler_(scheduler),
      transfer_(transfer),
      emit_(std::move(emit)),
      next_operation_(kFirstOperation) {}

void StoreTraffic::look_up(SequenceId id, std::span<const BlockHash> chain, uint64_t tick) {
  Load& load = loads_[id];
  load.deadline_tick = tick + kAnswerTicks;
  load.chain.assign(chain.begin(), chain.end());
  link::StoreLookup lookup{.sequence_id = id};
  for (const BlockHash& hash : chain) {
    lookup.chain.push_back(hash.low);
    lookup.chain.push_back(hash.high);
  }
  emit_(lookup);
}

bool StoreTraffic::worth_reading(uint32_t num_blocks) const {
  const double compute_ticks = scheduler_.predicted_prompt_ticks(0, num_blocks * kBlockTokens);
  const double read_ns = speed_.predicted_ns(num_blocks * layout_.stride_bytes());
  return num_blocks > 0 && reading_pays(read_ns, compute_ticks);
}

void StoreTraffic::found(const link::StoreFound& answer) {
  auto it = loads_.find(answer.sequence_id);
  if (it == loads_.end() || it->second.answered) {
    if (answer.lease_id != 0) emit_(link::StoreReadDone{.lease_id = answer.lease_id});
    return;
  }
  Load& load = it->second;
  load.answered = true;
  load.lease_id = answer.lease_id;
  load.peer = answer.peer_id;
  load.blocks = answer.blocks;
  const auto num_blocks = static_cast<uint32_t>(load.blocks.size());
  if (answer.peer_id != 0) {
    forget(std::span(load.chain).subspan(std::min(load.blocks.size(), load.chain.size())));
  }
  if (answer.lease_id == 0 || !worth_reading(num_blocks)) {
    num_reads_declined_ += answer.lease_id != 0;
    scheduler_.load_ready(answer.sequence_id, 0);
    return drop_load(answer.sequence_id, load);
  }
  scheduler_.load_ready(answer.sequence_id, num_blocks);
}

void StoreTraffic::drop_load(SequenceId id, Load& load) {
  if (load.lease_id != 0) emit_(link::StoreReadDone{.lease_id = load.lease_id});
  loads_.erase(id);
}

void StoreTraffic::load(const LoadOrder& order, uint64_t tick) {
  Load& load = loads_.at(order.id);
  load.order = order;
  load.reading = true;
  load.deadline_tick = tick + kTransferTicks;
  const auto table = scheduler_.block_table(order.id);
  ReadSpans read{.operation = next_operation_++, .peer = load.peer};
  read.stream = read.operation;
  for (uint32_t b = order.first_block; b < order.first_block + order.num_blocks; ++b) {
    read.spans.push_back(
        {table[b] * layout_.stride_bytes(), load.blocks[b].offset_bytes, layout_.stride_bytes()});
  }
  reads_.emplace(read.operation, order.id);
  transfer_.submit(std::move(read));
}

void StoreTraffic::started(SequenceId id) {
  auto it = loads_.find(id);
  if (it != loads_.end() && !it->second.reading) drop_load(id, it->second);
}

bool StoreTraffic::cancel(SequenceId id) {
  auto it = loads_.find(id);
  if (it == loads_.end()) return false;
  if (it->second.reading) {
    it->second.cancelled = true;
    return true;
  }
  drop_load(id, it->second);
  return false;
}

link::StoredBlock StoreTraffic::checksum(const link::StoredBlock& block, BlockId at) const {
  const std::byte* bytes = transfer_.segment().data() + at * layout_.stride_bytes();
  const XXH128_hash_t hash = XXH3_128bits(bytes, layout_.block_bytes());
  link::StoredBlock result = block;
  result.checksum_low = hash.low64;
  result.checksum_high = hash.high64;
  return result;
}

void StoreTraffic::finish_load(SequenceId id, Load& load, const Status& status, uint64_t tick) {
  link::StoreReadDone done{.lease_id = load.lease_id};
  uint32_t num_good = 0;
  if (status.ok()) {
    // A copy: `loaded` below may move the table.
    const auto view = scheduler_.block_table(id);
    const std::vector<BlockId> table(view.begin(), view.end());
    bool good = true;
    for (uint32_t i = 0; i < load.order.num_blocks; ++i) {
      const auto& expected = load.blocks[load.order.first_block + i];
      const auto found = checksum(expected, table[load.order.first_block + i]);
      const bool matches = found.checksum_low == expected.checksum_low &&
                           found.checksum_high == expected.checksum_high;
      if (!matches) {
        done.bad.push_back(expected.hash_low);
        done.bad.push_back(expected.hash_high);
        offered_.erase({expected.hash_low, expected.hash_high});
        ++num_blocks_bad_;
      }
      good = good && matches;
      num_good += good;
    }
  }
  num_blocks_read_ += num_good;
  emit_(done);
  const bool cancelled = load.cancelled;
  loads_.erase(id);
  scheduler_.loaded(id, cancelled ? 0 : num_good, tick);
  if (cancelled) scheduler_.finish(id);
}

void StoreTraffic::offer(std::span<const BlockHash> chain, std::span<const BlockId> blocks,
                         uint64_t tick) {
  if (offers_.size() >= kOffersMax) return;
  if (offered_.size() > kOfferedMax) offered_.clear();
  Offer offer{.deadline_tick = tick + kAnswerTicks};
  link::StoreOffer message{.offer_id = next_offer_};
  for (size_t i = 0; i < chain.size() && offer.blocks.size() < kOfferBlocksMax; ++i) {
    if (!offered_.insert(chain[i]).second) continue;
    offer.hashes.push_back(chain[i]);
    offer.blocks.push_back(blocks[i]);
    message.hashes.push_back(chain[i].low);
    message.hashes.push_back(chain[i].high);
  }
  if (offer.blocks.empty()) return;
  scheduler_.pin(offer.blocks);
  offers_.emplace(next_offer_++, std::move(offer));
  emit_(message);
}

void StoreTraffic::places(const link::StorePlaces& answer, uint64_t tick) {
  auto it = offers_.find(answer.offer_id);
  if (it == offers_.end() || it->second.writing) {
    // Too late: nothing is written; the empty answer gives the places back.
    if (answer.lease_id != 0) emit_(link::StoreWritten{.lease_id = answer.lease_id});
    return;
  }
  Offer& offer = it->second;
  offer.lease_id = answer.lease_id;
  offer.peer = answer.peer_id;
  WriteSpans write{.operation = next_operation_++, .peer = answer.peer_id};
  write.stream = write.operation;
  for (const auto& place : answer.blocks) {
    const BlockHash hash{place.hash_low, place.hash_high};
    const auto found = std::find(offer.hashes.begin(), offer.hashes.end(), hash);
    if (found == offer.hashes.end()) continue;
    const BlockId block = offer.blocks[found - offer.hashes.begin()];
    offer.placed.push_back(checksum(place, block));
    write.spans.push_back(
        {block * layout_.stride_bytes(), place.offset_bytes, layout_.stride_bytes()});
  }
  if (answer.peer_id == 0) forget(offer.hashes);
  if (answer.lease_id == 0 || write.spans.empty()) return finish_offer(answer.offer_id);
  offer.writing = true;
  offer.deadline_tick = tick + kTransferTicks;
  offer.num_outstanding = 2;
  const Fence fence{.operation = next_operation_++, .peer = answer.peer_id, .stream = write.stream};
  writes_.emplace(write.operation, answer.offer_id);
  writes_.emplace(fence.operation, answer.offer_id);
  transfer_.submit(std::move(write));
  transfer_.submit(fence);
}

void StoreTraffic::forget(std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : hashes) offered_.erase(hash);
}

void StoreTraffic::finish_offer(uint64_t offer_id) {
  Offer& offer = offers_.at(offer_id);
  // After a failed write nothing is said: only the end of the pair proves that no write of ours can
  // land, and the caller breaks it.
  if (offer.lease_id != 0 && offer.failure.ok()) {
    link::StoreWritten written{.lease_id = offer.lease_id, .blocks = std::move(offer.placed)};
    num_blocks_written_ += written.blocks.size();
    emit_(written);
  }
  scheduler_.unpin(offer.blocks);
  offers_.erase(offer_id);
}

std::optional<PeerId> StoreTraffic::on_done(const OperationDone& done, uint64_t tick) {
  auto write = writes_.find(done.operation);
  auto read = reads_.find(done.operation);
  if (read == reads_.end() && write == writes_.end()) return std::nullopt;
  if (done.status.ok()) speed_.observe(done.bytes, done.duration_ns);
  if (read != reads_.end()) {
    const SequenceId id = read->second;
    reads_.erase(read);
    const PeerId peer = loads_.at(id).peer;
    finish_load(id, loads_.at(id), done.status, tick);
    return peer;
  }
  const uint64_t offer_id = write->second;
  writes_.erase(write);
  Offer& offer = offers_.at(offer_id);
  const PeerId peer = offer.peer;
  if (!done.status.ok() && offer.failure.ok()) offer.failure = done.status;
  if (--offer.num_outstanding == 0) finish_offer(offer_id);
  return peer;
}

std::vector<PeerId> StoreTraffic::expire(uint64_t tick) {
  std::vector<PeerId> overdue;
  for (auto it = loads_.begin(); it != loads_.end();) {
    const auto current = it++;
    Load& load = current->second;
    if (load.deadline_tick > tick) continue;
    if (load.reading) {
      overdue.push_back(load.peer);
      load.deadline_tick = UINT64_MAX;
    } else if (!load.answered) {
      scheduler_.load_ready(current->first, 0);
      loads_.erase(current);
    }
  }
  std::vector<uint64_t> unanswered;
  for (auto& [offer_id, offer] : offers_) {
    if (offer.deadline_tick > tick) continue;
    if (offer.writing) {
      overdue.push_back(offer.peer);
      offer.deadline_tick = UINT64_MAX;
    } else {
      unanswered.push_back(offer_id);
    }
  }
  for (const uint64_t offer_id : unanswered) {
    forget(offers_.at(offer_id).hashes);
    finish_offer(offer_id);
  }
  return overdue;
}

uint64_t StoreTraffic::next_tick() const {
  uint64_t next = UINT64_MAX;
  for (const auto& [id, load] : loads_) {
    // One that is answered waits for its turn in the scheduler, which has no deadline.
    if (!load.answered || load.reading) next = std::min(next, load.deadline_tick);
  }
  for (const auto& [id, offer] : offers_) next = std::min(next, offer.deadline_tick);
  return next;
}

}  // namespace crossdock
