// The front's commands and what they are made of.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "crossdock/engine/messages.h"

namespace crossdock {

using namespace nb::literals;  // NOLINT

namespace {

void bind_sampling(nb::module_& m) {
  using link::Sampling;
  nb::class_<Sampling>(m, "Sampling")
      .def(
          "__init__",
          [](Sampling* self, float temperature, uint32_t top_k, float top_p, uint64_t seed,
             uint32_t choice, uint32_t max_tokens, uint32_t min_tokens, bool ignore_eos,
             std::vector<int32_t> stop_token_ids) {
            new (self) Sampling{temperature, top_k,      top_p,
                                seed,        choice,     max_tokens,
                                min_tokens,  ignore_eos, std::move(stop_token_ids)};
          },
          nb::kw_only(), "temperature"_a = 1.0f, "top_k"_a = 0, "top_p"_a = 1.0f, "seed"_a = 0,
          "choice"_a = 0, "max_tokens"_a = 0, "min_tokens"_a = 0, "ignore_eos"_a = false,
          "stop_token_ids"_a = std::vector<int32_t>())
      .def_rw("temperature", &Sampling::temperature)
      .def_rw("top_k", &Sampling::top_k)
      .def_rw("top_p", &Sampling::top_p)
      .def_rw("seed", &Sampling::seed)
      .def_rw("choice", &Sampling::choice)
      .def_rw("max_tokens", &Sampling::max_tokens)
      .def_rw("min_tokens", &Sampling::min_tokens)
      .def_rw("ignore_eos", &Sampling::ignore_eos)
      .def_rw("stop_token_ids", &Sampling::stop_token_ids);
}

void bind_stored_block(nb::module_& m) {
  using link::StoredBlock;
  nb::class_<StoredBlock>(m, "StoredBlock")
      .def(
          "__init__",
          [](StoredBlock* self, uint64_t hash_low, uint64_t hash_high, uint64_t offset_bytes,
             uint64_t generation, uint64_t checksum_low, uint64_t checksum_high) {
            new (self) StoredBlock{hash_low,   hash_high,    offset_bytes,
                                   generation, checksum_low, checksum_high};
          },
          nb::kw_only(), "hash_low"_a, "hash_high"_a, "offset_bytes"_a = 0, "generation"_a = 0,
          "checksum_low"_a = 0, "checksum_high"_a = 0)
      .def_rw("hash_low", &StoredBlock::hash_low)
      .def_rw("hash_high", &StoredBlock::hash_high)
      .def_rw("offset_bytes", &StoredBlock::offset_bytes)
      .def_rw("generation", &StoredBlock::generation)
      .def_rw("checksum_low", &StoredBlock::checksum_low)
      .def_rw("checksum_high", &StoredBlock::checksum_high);
}

void bind_task(nb::module_& m) {
  using link::Task;
  nb::class_<Task>(m, "Task")
      .def(
          "__init__",
          [](Task* self, uint64_t sequence_id, std::vector<int32_t> prompt,
             uint32_t num_generated_tokens, const link::Sampling& sampling,
             const nb::bytes& tenant_salt, bool wants_digests) {
            new (self) Task{sequence_id, std::move(prompt),       num_generated_tokens,
                            sampling,    from_bytes(tenant_salt), wants_digests};
          },
          nb::kw_only(), "sequence_id"_a, "prompt"_a, "num_generated_tokens"_a = 0, "sampling"_a,
          "tenant_salt"_a = nb::bytes(""), "wants_digests"_a = false)
      .def_rw("sequence_id", &Task::sequence_id)
      .def_rw("prompt", &Task::prompt)
      .def_rw("num_generated_tokens", &Task::num_generated_tokens)
      .def_rw("sampling", &Task::sampling)
      .def_prop_ro("tenant_salt", [](const Task& t) { return to_bytes(t.tenant_salt); })
      .def_rw("wants_digests", &Task::wants_digests);
}

void bind_request_commands(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<Generate>(m, "Generate")
      .def(
          "__init__", [](Generate* self, const Task& task) { new (self) Generate{task}; },
          nb::kw_only(), "task"_a)
      .def_rw("task", &Generate::task);
  nb::class_<Expect>(m, "Expect")
      .def(
          "__init__",
          [](Expect* self, const Task& task, uint64_t handoff_high, uint64_t handoff_low,
             uint32_t attempt, uint64_t source_epoch) {
            new (self) Expect{task, handoff_high, handoff_low, attempt, source_epoch};
          },
          nb::kw_only(), "task"_a, "handoff_high"_a, "handoff_low"_a, "attempt"_a, "source_epoch"_a)
      .def_rw("task", &Expect::task)
      .def_rw("handoff_high", &Expect::handoff_high)
      .def_rw("handoff_low", &Expect::handoff_low)
      .def_rw("attempt", &Expect::attempt)
      .def_rw("source_epoch", &Expect::source_epoch);
  nb::class_<Prefill>(m, "Prefill")
      .def(
          "__init__",
          [](Prefill* self, const Task& task, uint64_t handoff_high, uint64_t handoff_low,
             uint32_t attempt, uint32_t peer_id) {
            new (self) Prefill{task, handoff_high, handoff_low, attempt, peer_id};
          },
          nb::kw_only(), "task"_a, "handoff_high"_a, "handoff_low"_a, "attempt"_a, "peer_id"_a)
      .def_rw("task", &Prefill::task)
      .def_rw("handoff_high", &Prefill::handoff_high)
      .def_rw("handoff_low", &Prefill::handoff_low)
      .def_rw("attempt", &Prefill::attempt)
      .def_rw("peer_id", &Prefill::peer_id);
  nb::class_<Cancel>(m, "Cancel")
      .def(
          "__init__", [](Cancel* self, uint64_t sequence_id) { new (self) Cancel{sequence_id}; },
          nb::kw_only(), "sequence_id"_a)
      .def_rw("sequence_id", &Cancel::sequence_id);
}

void bind_peer_commands(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<ConnectPeer>(m, "ConnectPeer")
      .def(
          "__init__",
          [](ConnectPeer* self, uint32_t peer_id, uint64_t epoch, uint64_t incarnation,
             const nb::bytes& mac_key, const nb::bytes& descriptor, const nb::bytes& layout,
             bool store) {
            new (self) ConnectPeer{peer_id,
                                   epoch,
                                   incarnation,
                                   from_bytes(mac_key),
                                   from_bytes(descriptor),
                                   from_bytes(layout),
                                   store};
          },
          nb::kw_only(), "peer_id"_a, "epoch"_a, "incarnation"_a, "mac_key"_a, "descriptor"_a,
          "layout"_a, "store"_a = false)
      .def_rw("peer_id", &ConnectPeer::peer_id)
      .def_rw("epoch", &ConnectPeer::epoch)
      .def_rw("incarnation", &ConnectPeer::incarnation)
      .def_prop_ro("mac_key", [](const ConnectPeer& c) { return to_bytes(c.mac_key); })
      .def_prop_ro("descriptor", [](const ConnectPeer& c) { return to_bytes(c.descriptor); })
      .def_prop_ro("layout", [](const ConnectPeer& c) { return to_bytes(c.layout); })
      .def_rw("store", &ConnectPeer::store);
  nb::class_<DisconnectPeer>(m, "DisconnectPeer")
      .def(
          "__init__",
          [](DisconnectPeer* self, uint32_t peer_id) { new (self) DisconnectPeer{peer_id}; },
          nb::kw_only(), "peer_id"_a)
      .def_rw("peer_id", &DisconnectPeer::peer_id);
  nb::class_<PeerLost>(m, "PeerLost")
      .def(
          "__init__", [](PeerLost* self, uint64_t epoch) { new (self) PeerLost{epoch}; },
          nb::kw_only(), "epoch"_a)
      .def_rw("epoch", &PeerLost::epoch);
}

void bind_store_commands(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<StoreFound>(m, "StoreFound")
      .def(
          "__init__",
          [](StoreFound* self, uint64_t sequence_id, uint32_t peer_id, uint64_t lease_id,
             std::vector<StoredBlock> blocks) {
            new (self) StoreFound{sequence_id, peer_id, lease_id, std::move(blocks)};
          },
          nb::kw_only(), "sequence_id"_a, "peer_id"_a, "lease_id"_a, "blocks"_a)
      .def_rw("sequence_id", &StoreFound::sequence_id)
      .def_rw("peer_id", &StoreFound::peer_id)
      .def_rw("lease_id", &StoreFound::lease_id)
      .def_rw("blocks", &StoreFound::blocks);
  nb::class_<StorePlaces>(m, "StorePlaces")
      .def(
          "__init__",
          [](StorePlaces* self, uint64_t offer_id, uint32_t peer_id, uint64_t lease_id,
             std::vector<StoredBlock> blocks) {
            new (self) StorePlaces{offer_id, peer_id, lease_id, std::move(blocks)};
          },
          nb::kw_only(), "offer_id"_a, "peer_id"_a, "lease_id"_a, "blocks"_a)
      .def_rw("offer_id", &StorePlaces::offer_id)
      .def_rw("peer_id", &StorePlaces::peer_id)
      .def_rw("lease_id", &StorePlaces::lease_id)
      .def_rw("blocks", &StorePlaces::blocks);
  nb::class_<QueryStatus>(m, "QueryStatus").def(nb::init<>());
  nb::class_<Shutdown>(m, "Shutdown").def(nb::init<>());
}

}  // namespace

void bind_commands(nb::module_& m) {
  bind_sampling(m);
  bind_stored_block(m);
  bind_task(m);
  bind_request_commands(m);
  bind_peer_commands(m);
  bind_store_commands(m);
}

}  // namespace crossdock
