// Theory of operation: chains are touched from their last block to their first, so that within one
// chain the root is always the most recently used and leaves are evicted first; a block whose
// ancestors are gone could never be matched again.
#include "crossdock/tiers/block_store.h"

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace crossdock {
namespace {

uint64_t after(uint64_t tick, uint64_t ttl) {
  return ttl > UINT64_MAX - tick ? UINT64_MAX : tick + ttl;
}

uint32_t share(double part, uint32_t whole) { return static_cast<uint32_t>(part * whole); }

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "BlockStore::check: %s\n", what);
  std::abort();
}

}  // namespace

BlockStore::BlockStore(const BlockStoreConfig& config)
    : config_(config),
      high_blocks_(share(config.high_watermark, config.num_blocks)),
      low_blocks_(share(config.low_watermark, config.num_blocks)),
      quarantine_blocks_max_(share(config.quarantine_max, config.num_blocks)),
      slots_(config.num_blocks) {
  assert(config.low_watermark <= config.high_watermark && config.high_watermark <= 1.0);
  free_.reserve(config.num_blocks);
  for (uint32_t slot = config.num_blocks; slot-- > 0;) free_.push_back(slot);
  by_key_.reserve(config.num_blocks);
  statistics_.num_free = config.num_blocks;
}

uint32_t BlockStore::match(std::span<const ContentKey> keys) const {
  uint32_t count = 0;
  for (const ContentKey& key : keys) {
    const auto it = by_key_.find(key);
    if (it == by_key_.end() || slots_[it->second].state != SlotState::kPublished) break;
    ++count;
  }
  return count;
}

Status BlockStore::admit(std::span<const ContentKey> keys, const LeaseTerms& terms) const {
  if (keys.size() > config_.keys_max) {
    return {StatusCode::kInvalidArgument,
            "keys: " + std::to_string(keys.size()) + " are more than the " +
                std::to_string(config_.keys_max) + " that one call may name"};
  }
  if (terms.ttl_ticks > config_.ttl_ticks_max) {
    return {StatusCode::kInvalidArgument, "ttl: longer than the longest lease, " +
                                              std::to_string(config_.ttl_ticks_max) + " ticks"};
  }
  if (leases_.size() >= config_.leases_max) {
    return {StatusCode::kResourceExhausted,
            "all " + std::to_string(config_.leases_max) + " leases are in use; release some"};
  }
  return {};
}

Result<BlockLease> BlockStore::acquire(std::span<const ContentKey> keys, const LeaseTerms& terms,
                                       uint64_t tick) {
  if (Status status = admit(keys, terms); !status.ok()) return status;
  const uint32_t count = match(keys);
  statistics_.hit_blocks += count;
  statistics_.miss_blocks += keys.size() - count;
  BlockLease lease;
  if (count == 0) return lease;
  std::vector<uint32_t> slots;
  for (const ContentKey& key : keys.first(count)) {
    const uint32_t slot = by_key_.find(key)->second;
    pin(slot);
    slots.push_back(slot);
    lease.blocks.push_back({key, slot, slots_[slot].generation, slots_[slot].checksum});
  }
  lease.lease_id = open_lease(false, terms, std::move(slots), tick);
  return lease;
}

Result<BlockLease> BlockStore::reserve(std::span<const ContentKey> keys, const LeaseTerms& terms,
                                       uint64_t tick) {
  if (Status status = admit(keys, terms); !status.ok()) return status;
  if (statistics_.num_quarantined > quarantine_blocks_max_) {
    return Status(StatusCode::kResourceExhausted,
                  std::to_string(statistics_.num_quarantined) +
                      " slots are in quarantine, where a lost writer may still write; at most " +
                      std::to_string(quarantine_blocks_max_) + " may be");
  }
  touch(keys);
  uint32_t wanted = 0;
  for (const ContentKey& key : keys) wanted += by_key_.contains(key) ? 0 : 1;
  BlockLease lease;
  if (wanted == 0) return lease;
  make_room(wanted);

  std::vector<uint32_t> slots;
  for (const ContentKey& key : keys) {
    if (by_key_.contains(key)) continue;
    if (free_.empty()) {
      ++statistics_.refused_reservations;
      continue;
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    set_state(slot, SlotState::kWriting);
    ++slots_[slot].generation;
    slots_[slot].key = key;
    by_key_.emplace(key, slot);
    slots.push_back(slot);
    lease.blocks.push_back({key, slot, slots_[slot].generation, {}});
  }
  statistics_.reserved_blocks += slots.size();
  if (!slots.empty()) lease.lease_id = open_lease(true, terms, std::move(slots), tick);
  return lease;
}

Result<uint32_t> BlockStore::commit(LeaseId id, std::span<const Publication> publications) {
  const auto it = leases_.find(id);
  if (it == leases_.end() || !it->second.writes) {
    return Status(StatusCode::kNotFound, "no reservation has this lease id; it ended");
  }
  Lease& lease = it->second;
  // Each named block must be one of the lease's, once; nothing changes before that is known.
  std::map<ContentKey, uint32_t> held;
  for (const uint32_t slot : lease.slots) held.emplace(slots_[slot].key, slot);
  std::vector<uint32_t> committed;
  for (const Publication& publication : publications) {
    const auto found = held.find(publication.key);
    if (found == held.end()) {
      return Status(StatusCode::kInvalidArgument,
                    "blocks: one of them is not of this reservation, or is named twice");
    }
    committed.push_back(found->second);
    held.erase(found);
  }
  for (size_t i = 0; i < committed.size(); ++i) {
    const uint32_t slot = committed[i];
    std::erase(lease.slots, slot);
    if (lease.expired) {
      free_slot(slot);
      continue;
    }
    slots_[slot].checksum = publications[i].checksum;
    set_state(slot, SlotState::kPublished);
  }
  const bool expired = lease.expired;
  if (!expired) {
    for (size_t i = committed.size(); i-- > 0;) append_recent(committed[i]);
    statistics_.published_blocks += committed.size();
  }
  if (lease.slots.empty()) end_lease(it);
  if (expired) {
    return Status(StatusCode::kNotFound, "the reservation expired before its commit");
  }
  return static_cast<uint32_t>(committed.size());
}

// ---- leases -------------------------------------------------------------------------------------

LeaseId BlockStore::open_lease(bool writes, const LeaseTerms& terms, std::vector<uint32_t> slots,
                               uint64_t tick) {
  const LeaseId id = next_lease_++;
  const uint64_t deadline = after(tick, terms.ttl_ticks);
  leases_.emplace(id, Lease{writes, false, terms.owner_epoch, deadline, std::move(slots)});
  if (deadline != UINT64_MAX) deadlines_.insert({deadline, id});
  return id;
}

void BlockStore::disarm(LeaseId id, Lease& lease) {
  deadlines_.erase({lease.deadline, id});
  lease.deadline = UINT64_MAX;
}

bool BlockStore::renew(LeaseId id, uint64_t ttl_ticks, uint64_t tick) {
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.expired || ttl_ticks > config_.ttl_ticks_max) return false;
  disarm(id, it->second);
  it->second.deadline = after(tick, ttl_ticks);
  if (it->second.deadline != UINT64_MAX) deadlines_.insert({it->second.deadline, id});
  return true;
}

bool BlockStore::release(LeaseId id) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return false;
  end_lease(it);
  return true;
}

std::map<LeaseId, BlockStore::Lease>::iterator BlockStore::end_lease(
    std::map<LeaseId, Lease>::iterator it) {
  Lease& lease = it->second;
  disarm(it->first, lease);
  if (lease.writes) {
    for (const uint32_t slot : lease.slots) {
      if (!lease.expired) {
        by_key_.erase(slots_[slot].key);
        ++statistics_.abandoned_blocks;
      }
      free_slot(slot);
    }
  } else {
    unpin_all(lease);
  }
  return leases_.erase(it);
}

std::map<LeaseId, BlockStore::Lease>::iterator BlockStore::expire_lease(
    std::map<LeaseId, Lease>::iterator it) {
  Lease& lease = it->second;
  if (lease.expired) return std::next(it);
  ++statistics_.expired_leases;
  if (!lease.writes) return end_lease(it);
  disarm(it->first, lease);
  lease.expired = true;
  for (const uint32_t slot : lease.slots) {
    by_key_.erase(slots_[slot].key);
    ++statistics_.abandoned_blocks;
    set_state(slot, SlotState::kQuarantined);
  }
  return std::next(it);
}

void BlockStore::expire(uint64_t tick) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= tick) {
    expire_lease(leases_.find(deadlines_.begin()->second));
  }
}

uint64_t BlockStore::next_tick() const {
  return deadlines_.empty() ? UINT64_MAX : deadlines_.begin()->first;
}

void BlockStore::revoke_owner(uint64_t owner_epoch) {
  for (auto it = leases_.begin(); it != leases_.end();) {
    it = it->second.owner_epoch == owner_epoch ? expire_lease(it) : std::next(it);
  }
}

void BlockStore::owner_gone(uint64_t owner_epoch) {
  for (auto it = leases_.begin(); it != leases_.end();) {
    it = it->second.owner_epoch == owner_epoch ? end_lease(it) : std::next(it);
  }
}

// ---- slots --------------------------------------------------------------------------------------

bool BlockStore::drop(const ContentKey& key, uint64_t generation) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end() || slots_[it->second].state != SlotState::kPublished ||
      slots_[it->second].generation != generation) {
    ++statistics_.stale_drops;
    return false;
  }
  const uint32_t slot = it->second;
  by_key_.erase(it);
  ++statistics_.dropped_blocks;
  if (slots_[slot].pins == 0) {
    unlink(slot);
    free_slot(slot);
  } else {
    --statistics_.num_pinned;
    set_state(slot, SlotState::kRetired);
  }
  return true;
}

void BlockStore::touch(std::span<const ContentKey> keys) {
  ++touch_;
  for (size_t i = keys.size(); i-- > 0;) {
    const auto it = by_key_.find(keys[i]);
    if (it == by_key_.end() || slots_[it->second].state != SlotState::kPublished) continue;
    Slot& slot = slots_[it->second];
    slot.touched = touch_;
    if (slot.pins > 0) continue;
    unlink(it->second);
    append_recent(it->second);
  }
}

void BlockStore::make_room(uint32_t num_blocks) {
  const auto used = [&] { return config_.num_blocks - statistics_.num_free; };
  if (uint64_t{used()} + num_blocks <= high_blocks_) return;
  while (uint64_t{used()} + num_blocks > low_blocks_ && evict_one()) {
  }
}

bool BlockStore::evict_one() {
  // What the current call touched is at the young end, so the first of it ends the search.
  if (oldest_ == kNone || slots_[oldest_].touched == touch_) return false;
  const uint32_t slot = oldest_;
  unlink(slot);
  by_key_.erase(slots_[slot].key);
  ++statistics_.evicted_blocks;
  free_slot(slot);
  return true;
}

void BlockStore::pin(uint32_t slot) {
  if (slots_[slot].pins++ > 0) return;
  unlink(slot);
  ++statistics_.num_pinned;
}

void BlockStore::unpin(uint32_t slot) {
  assert(slots_[slot].pins > 0);
  if (--slots_[slot].pins > 0) return;
  if (slots_[slot].state == SlotState::kRetired) {
    free_slot(slot);
    return;
  }
  --statistics_.num_pinned;
  append_recent(slot);
}

void BlockStore::unpin_all(const Lease& lease) {
  for (size_t i = lease.slots.size(); i-- > 0;) unpin(lease.slots[i]);
}

void BlockStore::set_state(uint32_t slot, SlotState state) {
  --count_of(slots_[slot].state);
  slots_[slot].state = state;
  ++count_of(state);
}

uint32_t& BlockStore::count_of(SlotState state) {
  switch (state) {
    case SlotState::kFree: return statistics_.num_free;
    case SlotState::kWriting: return statistics_.num_writing;
    case SlotState::kPublished: return statistics_.num_published;
    case SlotState::kRetired: return statistics_.num_retired;
    case SlotState::kQuarantined: break;
  }
  return statistics_.num_quarantined;
}

void BlockStore::free_slot(uint32_t slot) {
  set_state(slot, SlotState::kFree);
  free_.push_back(slot);
}

void BlockStore::append_recent(uint32_t slot) {
  slots_[slot].previous = newest_;
  slots_[slot].next = kNone;
  (newest_ == kNone ? oldest_ : slots_[newest_].next) = slot;
  newest_ = slot;
}

void BlockStore::unlink(uint32_t slot) {
  const Slot& gone = slots_[slot];
  (gone.previous == kNone ? oldest_ : slots_[gone.previous].next) = gone.next;
  (gone.next == kNone ? newest_ : slots_[gone.next].previous) = gone.previous;
}

// ---- views --------------------------------------------------------------------------------------

BlockStoreStatistics BlockStore::statistics() const {
  BlockStoreStatistics statistics = statistics_;
  statistics.num_leases = static_cast<uint32_t>(leases_.size());
  return statistics;
}

void BlockStore::check() const {
  // What leases say about each slot.
  std::vector<uint32_t> pins(slots_.size(), 0);
  std::vector<uint32_t> writers(slots_.size(), 0);
  size_t armed = 0;
  for (const auto& [id, lease] : leases_) {
    require(!lease.slots.empty(), "a lease holds something");
    require(lease.writes || !lease.expired, "an expired read lease is gone");
    if (lease.deadline != UINT64_MAX) {
      require(deadlines_.contains({lease.deadline, id}), "a deadline is armed");
      ++armed;
    }
    for (const uint32_t slot : lease.slots) {
      if (!lease.writes) {
        ++pins[slot];
        continue;
      }
      ++writers[slot];
      require(slots_[slot].state == (lease.expired ? SlotState::kQuarantined : SlotState::kWriting),
              "a reservation's slots are being written, or quarantined once it expired");
    }
  }
  require(armed == deadlines_.size(), "no deadline without a lease");

  std::vector<uint32_t> in_order(slots_.size(), 0);
  for (uint32_t slot = oldest_; slot != kNone; slot = slots_[slot].next) ++in_order[slot];
  std::vector<uint32_t> is_free(slots_.size(), 0);
  for (const uint32_t slot : free_) ++is_free[slot];
  BlockStoreStatistics found;
  size_t indexed = 0;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const Slot& s = slots_[slot];
    const bool writing = s.state == SlotState::kWriting;
    const bool published = s.state == SlotState::kPublished;
    require(is_free[slot] == (s.state == SlotState::kFree ? 1 : 0), "free slots, each once");
    require(s.pins == pins[slot], "pins are those of the read leases");
    require(writers[slot] == (writing || s.state == SlotState::kQuarantined ? 1 : 0),
            "one reservation a slot that is written or quarantined");
    require(in_order[slot] == (published && s.pins == 0 ? 1 : 0),
            "the eviction order holds what is published and unpinned");
    require(s.state != SlotState::kRetired || s.pins > 0, "a retired slot is pinned");
    if (writing || published) {
      const auto it = by_key_.find(s.key);
      require(it != by_key_.end() && it->second == slot, "the index finds the slot");
      ++indexed;
    }
    found.num_free += s.state == SlotState::kFree;
    found.num_writing += writing;
    found.num_published += published;
    found.num_pinned += published && s.pins > 0;
    found.num_retired += s.state == SlotState::kRetired;
    found.num_quarantined += s.state == SlotState::kQuarantined;
  }
  require(indexed == by_key_.size(), "the index holds nothing else");
  require(found.num_free == statistics_.num_free && found.num_writing == statistics_.num_writing &&
              found.num_published == statistics_.num_published &&
              found.num_pinned == statistics_.num_pinned &&
              found.num_retired == statistics_.num_retired &&
              found.num_quarantined == statistics_.num_quarantined,
          "the gauges count the slots");
}

}  // namespace crossdock
