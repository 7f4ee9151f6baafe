// The index of the DRAM tier: which content lies in which slot of a slab, on leases. Pure: it owns
// no memory and posts no transfer; integer ticks come in as arguments.
//
// Every slot is in exactly one state:
//   free         nobody knows it
//   writing      a reservation gave it to a writer; invisible to readers
//   published    found by its content; pinned while read leases hold it, evictable otherwise
//   retired      reported bad or replaced while readers still pin it: never handed out again
//   quarantined  its reservation ended without a word of the writer, whose writes may still land
//
//   free --reserve--> writing --commit--> published --evict, drop--> free (pinned: retired first)
//   writing --release (the writer: none of my writes is in flight)--> free
//   writing --expire, revoke_owner--> quarantined --release, commit, owner_gone--> free
//
// The store cannot see one-sided reads, so a read lease that expires merely unpins: its reader
// verifies generation and checksum after its get, before the block is used.
//
// Not thread-safe: one thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

// What a block's content is known by: 128 bits of a keyed cryptographic hash, hence uniform.
struct ContentKey {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const ContentKey&, const ContentKey&) = default;
};

}  // namespace crossdock

template <>
struct std::hash<crossdock::ContentKey> {
  size_t operator()(const crossdock::ContentKey& key) const noexcept { return key.low; }
};

namespace crossdock {

struct ContentChecksum {  // XXH3-128 of the block's bytes
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const ContentChecksum&, const ContentChecksum&) = default;
};

using LeaseId = uint64_t;  // 0: none

struct StoredBlock {
  ContentKey key;
  uint32_t slot = 0;
  uint64_t generation = 0;   // counts the uses of the slot
  ContentChecksum checksum;  // zero in a reservation
  friend bool operator==(const StoredBlock&, const StoredBlock&) = default;
};

struct BlockLease {
  LeaseId lease_id = 0;  // 0 when there is nothing to hold
  std::vector<StoredBlock> blocks;
};

struct Publication {
  ContentKey key;
  ContentChecksum checksum;
};

struct LeaseTerms {
  uint64_t owner_epoch = 0;  // of the engine that reads or writes
  uint64_t ttl_ticks = 0;
};

struct BlockStoreConfig {
  uint32_t num_blocks = 0;
  // Eviction: from the high watermark of the slots in use down to the low one.
  double high_watermark = 0.88;
  double low_watermark = 0.80;
  // Quarantined slots allowed, as a share of all; past it reservations are refused.
  double quarantine_max = 0.25;
  uint32_t leases_max = 65'536;
  uint32_t keys_max = 65'536;  // in one call
  uint64_t ttl_ticks_max = UINT64_MAX;
};

// Gauges are what is now, everything else counts up for ever.
struct BlockStoreStatistics {
  // gauges
  uint32_t num_free = 0;
  uint32_t num_writing = 0;
  uint32_t num_published = 0;
  uint32_t num_pinned = 0;  // of the published
  uint32_t num_retired = 0;
  uint32_t num_quarantined = 0;
  uint32_t num_leases = 0;
  // counters
  uint64_t hit_blocks = 0;
  uint64_t miss_blocks = 0;
  uint64_t reserved_blocks = 0;
  uint64_t published_blocks = 0;
  uint64_t abandoned_blocks = 0;  // reserved, never published
  uint64_t evicted_blocks = 0;
  uint64_t dropped_blocks = 0;  // reported bad by a reader
  uint64_t stale_drops = 0;     // reports of a generation that is gone already
  uint64_t expired_leases = 0;
  uint64_t refused_reservations = 0;  // blocks that found no room
  friend bool operator==(const BlockStoreStatistics&, const BlockStoreStatistics&) = default;
};

class BlockStore {
 public:
  explicit BlockStore(const BlockStoreConfig& config);

  // Length of the longest prefix of `keys` that is published. Pins nothing, touches nothing.
  uint32_t match(std::span<const ContentKey> keys) const;

  // Pins the longest published prefix and tells where it lies. INVALID_ARGUMENT for a bound that
  // is exceeded, RESOURCE_EXHAUSTED when there are too many leases.
  Result<BlockLease> acquire(std::span<const ContentKey> keys, const LeaseTerms& terms,
                             uint64_t tick);

  // Slots for those of `keys` that are neither published nor being written, in order, as many as
  // there is room for after evicting what was used least recently. What `keys` names and is
  // published is never evicted for it. RESOURCE_EXHAUSTED when too much is in quarantine.
  Result<BlockLease> reserve(std::span<const ContentKey> keys, const LeaseTerms& terms,
                             uint64_t tick);

  // The bytes of these blocks of the reservation have all arrived: publishes them, all or none.
  // Returns how many. A reservation ends with its last block. NOT_FOUND for a lease that is
  // unknown, or that expired: nothing is published then, but the commit proves that the writes of
  // these blocks are over, so they leave quarantine. INVALID_ARGUMENT for a key the lease lacks.
  Result<uint32_t> commit(LeaseId lease, std::span<const Publication> publications);

  // False when the lease is unknown or has expired.
  bool renew(LeaseId lease, uint64_t ttl_ticks, uint64_t tick);

  // Ends a lease of either kind. For a reservation, expired or not, it is the writer's word that
  // none of its writes is in flight. False when the lease is unknown.
  bool release(LeaseId lease);

  // Ends the leases whose time is over: reads unpin, reservations go to quarantine.
  void expire(uint64_t tick);
  // The earliest tick at which expire() would do something; UINT64_MAX when never.
  uint64_t next_tick() const;

  // The connection to this owner ended: as if all of its leases expired.
  void revoke_owner(uint64_t owner_epoch);
  // Proof that no write of this owner can land any more: ends all of its leases and quarantines.
  void owner_gone(uint64_t owner_epoch);

  // A reader found that this block's bytes do not match. Returns whether it was still there.
  bool drop(const ContentKey& key, uint64_t generation);

  BlockStoreStatistics statistics() const;

  // Aborts with a message unless the states partition the slots and leases, index, pins and
  // the eviction order agree.
  void check() const;

 private:
  friend class BlockStoreInspector;  // what a simulation's checkers look at

  enum class SlotState : uint8_t { kFree, kWriting, kPublished, kRetired, kQuarantined };
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Slot {
    SlotState state = SlotState::kFree;
    uint32_t pins = 0;
    uint32_t previous = kNone;  // in the eviction order, while published and unpinned
    uint32_t next = kNone;
    uint64_t generation = 0;
    uint64_t touched = 0;  // by which call last
    ContentKey key;
    ContentChecksum checksum;
  };
  struct Lease {
    bool writes = false;
    bool expired = false;  // only reservations stay on after that, in quarantine
    uint64_t owner_epoch = 0;
    uint64_t deadline = UINT64_MAX;
    std::vector<uint32_t> slots;
  };

  Status admit(std::span<const ContentKey> keys, const LeaseTerms& terms) const;
  LeaseId open_lease(bool writes, const LeaseTerms& terms, std::vector<uint32_t> slots,
                     uint64_t tick);
  // What the end of its time does to a lease; erases it unless slots of it are quarantined.
  std::map<LeaseId, Lease>::iterator expire_lease(std::map<LeaseId, Lease>::iterator it);
  std::map<LeaseId, Lease>::iterator end_lease(std::map<LeaseId, Lease>::iterator it);
  void disarm(LeaseId id, Lease& lease);
  void touch(std::span<const ContentKey> keys);
  void make_room(uint32_t num_blocks);
  bool evict_one();
  void pin(uint32_t slot);
  void unpin(uint32_t slot);
  void unpin_all(const Lease& lease);
  void set_state(uint32_t slot, SlotState state);
  uint32_t& count_of(SlotState state);
  void free_slot(uint32_t slot);
  void append_recent(uint32_t slot);
  void unlink(uint32_t slot);

  BlockStoreConfig config_;
  uint32_t high_blocks_;
  uint32_t low_blocks_;
  uint32_t quarantine_blocks_max_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;                       // a stack
  std::unordered_map<ContentKey, uint32_t> by_key_;  // writing and published
  std::map<LeaseId, Lease> leases_;
  std::set<std::pair<uint64_t, LeaseId>> deadlines_;
  LeaseId next_lease_ = 1;
  uint32_t oldest_ = kNone;  // eviction order: least recently used first
  uint32_t newest_ = kNone;
  uint64_t touch_ = 0;
  BlockStoreStatistics statistics_;
};

}  // namespace crossdock
