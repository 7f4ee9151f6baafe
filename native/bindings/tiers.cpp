// The index of the DRAM tier. Chains of keys are flat lists: low, high, low, high, ...
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "crossdock/tiers/block_store.h"
#include "status_error.h"

namespace crossdock {

using namespace nb::literals;  // NOLINT

namespace {

using Words = std::vector<uint64_t>;

void require_groups_of(size_t size, const Words& words) {
  if (words.size() % size == 0) return;
  raise_status({StatusCode::kInvalidArgument, "expected groups of " + std::to_string(size) +
                                                  " words, got " + std::to_string(words.size()) +
                                                  " words"});
}

std::vector<ContentKey> keys_of(const Words& words) {
  require_groups_of(2, words);
  std::vector<ContentKey> keys;
  keys.reserve(words.size() / 2);
  for (size_t i = 0; i < words.size(); i += 2) keys.push_back({words[i], words[i + 1]});
  return keys;
}

std::vector<Publication> publications_of(const Words& words) {
  require_groups_of(4, words);
  std::vector<Publication> publications;
  publications.reserve(words.size() / 4);
  for (size_t i = 0; i < words.size(); i += 4) {
    publications.push_back(
        {.key = {words[i], words[i + 1]}, .checksum = {words[i + 2], words[i + 3]}});
  }
  return publications;
}

void bind_blocks(nb::module_& m) {
  nb::class_<StoredBlock>(m, "SlotBlock")
      .def_prop_ro("hash_low", [](const StoredBlock& b) { return b.key.low; })
      .def_prop_ro("hash_high", [](const StoredBlock& b) { return b.key.high; })
      .def_ro("slot", &StoredBlock::slot)
      .def_ro("generation", &StoredBlock::generation)
      .def_prop_ro("checksum_low", [](const StoredBlock& b) { return b.checksum.low; })
      .def_prop_ro("checksum_high", [](const StoredBlock& b) { return b.checksum.high; });
  nb::class_<BlockLease>(m, "BlockLease")
      .def_ro("lease_id", &BlockLease::lease_id)
      .def_ro("blocks", &BlockLease::blocks);
}

void bind_statistics(nb::module_& m) {
  using S = BlockStoreStatistics;
  nb::class_<S>(m, "BlockStoreStatistics")
      .def_ro("num_free", &S::num_free)
      .def_ro("num_writing", &S::num_writing)
      .def_ro("num_published", &S::num_published)
      .def_ro("num_pinned", &S::num_pinned)
      .def_ro("num_retired", &S::num_retired)
      .def_ro("num_quarantined", &S::num_quarantined)
      .def_ro("num_leases", &S::num_leases)
      .def_ro("hit_blocks", &S::hit_blocks)
      .def_ro("miss_blocks", &S::miss_blocks)
      .def_ro("reserved_blocks", &S::reserved_blocks)
      .def_ro("published_blocks", &S::published_blocks)
      .def_ro("abandoned_blocks", &S::abandoned_blocks)
      .def_ro("evicted_blocks", &S::evicted_blocks)
      .def_ro("dropped_blocks", &S::dropped_blocks)
      .def_ro("stale_drops", &S::stale_drops)
      .def_ro("expired_leases", &S::expired_leases)
      .def_ro("refused_reservations", &S::refused_reservations);
}

}  // namespace

void bind_tiers(nb::module_& m) {
  bind_blocks(m);
  bind_statistics(m);
  nb::class_<BlockStore>(m, "BlockStore")
      .def(
          "__init__",
          [](BlockStore* self, uint32_t num_blocks) {
            new (self) BlockStore(BlockStoreConfig{.num_blocks = num_blocks});
          },
          nb::kw_only(), "num_blocks"_a)
      .def(
          "match",
          [](const BlockStore& store, const Words& chain) { return store.match(keys_of(chain)); },
          "chain"_a)
      .def(
          "acquire",
          [](BlockStore& store, const Words& chain, uint64_t owner_epoch, uint64_t ttl_ticks,
             uint64_t tick) {
            const LeaseTerms terms{.owner_epoch = owner_epoch, .ttl_ticks = ttl_ticks};
            return value_or_raise(store.acquire(keys_of(chain), terms, tick));
          },
          "chain"_a, nb::kw_only(), "owner_epoch"_a, "ttl_ticks"_a, "tick"_a)
      .def(
          "reserve",
          [](BlockStore& store, const Words& hashes, uint64_t owner_epoch, uint64_t ttl_ticks,
             uint64_t tick) {
            const LeaseTerms terms{.owner_epoch = owner_epoch, .ttl_ticks = ttl_ticks};
            return value_or_raise(store.reserve(keys_of(hashes), terms, tick));
          },
          "hashes"_a, nb::kw_only(), "owner_epoch"_a, "ttl_ticks"_a, "tick"_a)
      .def(
          "commit",
          [](BlockStore& store, LeaseId lease_id, const Words& publications) {
            return value_or_raise(store.commit(lease_id, publications_of(publications)));
          },
          "lease_id"_a, "publications"_a)
      .def("release", &BlockStore::release, "lease_id"_a)
      .def("expire", &BlockStore::expire, "tick"_a)
      .def("next_tick", &BlockStore::next_tick)
      .def("revoke_owner", &BlockStore::revoke_owner, "owner_epoch"_a)
      .def("owner_gone", &BlockStore::owner_gone, "owner_epoch"_a)
      .def(
          "drop",
          [](BlockStore& store, uint64_t hash_low, uint64_t hash_high, uint64_t generation) {
            return store.drop({hash_low, hash_high}, generation);
          },
          "hash_low"_a, "hash_high"_a, "generation"_a)
      .def("statistics", &BlockStore::statistics);
}

}  // namespace crossdock
