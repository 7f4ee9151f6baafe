// What the engine reports. Read-only: Python never makes one, except fakes in tests.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "crossdock/engine/messages.h"

namespace crossdock {
namespace {

void bind_start(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<Ready>(m, "Ready")
      .def_ro("epoch", &Ready::epoch)
      .def_prop_ro("descriptor", [](const Ready& r) { return to_bytes(r.descriptor); })
      .def_prop_ro("layout", [](const Ready& r) { return to_bytes(r.layout); })
      .def_prop_ro("layout_text", [](const Ready& e) { return to_text(e.layout_text); })
      .def_ro("numerics_id", &Ready::numerics_id)
      .def_ro("num_blocks", &Ready::num_blocks)
      .def_ro("block_stride_bytes", &Ready::block_stride_bytes)
      .def_ro("context_tokens_max", &Ready::context_tokens_max)
      .def_ro("vocab_size", &Ready::vocab_size)
      .def_ro("eos_token_ids", &Ready::eos_token_ids);
  nb::class_<StartFailed>(m, "StartFailed")
      .def_ro("code", &StartFailed::code)
      .def_prop_ro("message", [](const StartFailed& e) { return to_text(e.message); });
}

void bind_tokens(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::enum_<Finish>(m, "Finish", nb::is_arithmetic())
      .value("NONE", Finish::kNone)
      .value("STOP", Finish::kStop)
      .value("LENGTH", Finish::kLength);
  nb::class_<SequenceToken>(m, "SequenceToken")
      .def_ro("sequence_id", &SequenceToken::sequence_id)
      .def_ro("token", &SequenceToken::token)
      .def_ro("position", &SequenceToken::position)
      .def_ro("digest_low", &SequenceToken::digest_low)
      .def_ro("digest_high", &SequenceToken::digest_high)
      .def_ro("finish", &SequenceToken::finish);
  nb::class_<Tokens>(m, "Tokens").def_ro("tokens", &Tokens::tokens);
  nb::class_<Started>(m, "Started")
      .def_ro("sequence_id", &Started::sequence_id)
      .def_ro("num_cached_tokens", &Started::num_cached_tokens)
      .def_ro("queue_ns", &Started::queue_ns)
      .def_ro("prefill_ns", &Started::prefill_ns);
}

void bind_ends(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<HandoffDone>(m, "HandoffDone")
      .def_ro("sequence_id", &HandoffDone::sequence_id)
      .def_ro("first_token", &HandoffDone::first_token)
      .def_ro("position", &HandoffDone::position)
      .def_ro("digest_low", &HandoffDone::digest_low)
      .def_ro("digest_high", &HandoffDone::digest_high)
      .def_ro("num_cached_tokens", &HandoffDone::num_cached_tokens)
      .def_ro("queue_ns", &HandoffDone::queue_ns)
      .def_ro("prefill_ns", &HandoffDone::prefill_ns)
      .def_ro("handoff_ns", &HandoffDone::handoff_ns)
      .def_ro("handoff_bytes", &HandoffDone::handoff_bytes)
      .def_ro("num_transfers", &HandoffDone::num_transfers)
      .def_ro("transfer_ns", &HandoffDone::transfer_ns);
  nb::class_<Ended>(m, "Ended")
      .def_ro("sequence_id", &Ended::sequence_id)
      .def_ro("code", &Ended::code)
      .def_prop_ro("message", [](const Ended& e) { return to_text(e.message); });
  nb::class_<PeerConnected>(m, "PeerConnected")
      .def_ro("peer_id", &PeerConnected::peer_id)
      .def_prop_ro("transport", [](const PeerConnected& e) { return to_text(e.transport); })
      .def_prop_ro("not_shared", [](const PeerConnected& e) { return to_text(e.not_shared); })
      .def_prop_ro("staged", [](const PeerConnected& e) { return to_text(e.staged); });
  nb::class_<PeerDown>(m, "PeerDown")
      .def_ro("peer_id", &PeerDown::peer_id)
      .def_ro("closed", &PeerDown::closed)
      .def_ro("code", &PeerDown::code)
      .def_prop_ro("message", [](const PeerDown& e) { return to_text(e.message); });
}

void bind_store_events(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<StoreLookup>(m, "StoreLookup")
      .def_ro("sequence_id", &StoreLookup::sequence_id)
      .def_ro("chain", &StoreLookup::chain);
  nb::class_<StoreReadDone>(m, "StoreReadDone")
      .def_ro("lease_id", &StoreReadDone::lease_id)
      .def_ro("bad", &StoreReadDone::bad);
  nb::class_<StoreOffer>(m, "StoreOffer")
      .def_ro("offer_id", &StoreOffer::offer_id)
      .def_ro("hashes", &StoreOffer::hashes);
  nb::class_<StoreWritten>(m, "StoreWritten")
      .def_ro("lease_id", &StoreWritten::lease_id)
      .def_ro("blocks", &StoreWritten::blocks);
}

void bind_status(nb::module_& m) {
  using namespace link;  // NOLINT
  nb::class_<NamedCount>(m, "NamedCount")
      .def_ro("name", &NamedCount::name)
      .def_ro("value", &NamedCount::value);
  nb::class_<PairReport>(m, "PairReport")
      .def_ro("peer_id", &PairReport::peer_id)
      .def_ro("counters", &PairReport::counters);
  nb::class_<StatusReport>(m, "StatusReport")
      .def_ro("num_blocks", &StatusReport::num_blocks)
      .def_ro("num_free", &StatusReport::num_free)
      .def_ro("num_owned", &StatusReport::num_owned)
      .def_ro("num_cached", &StatusReport::num_cached)
      .def_ro("num_quarantined", &StatusReport::num_quarantined)
      .def_ro("quarantined_blocks_max", &StatusReport::quarantined_blocks_max)
      .def_ro("num_running", &StatusReport::num_running)
      .def_ro("num_waiting", &StatusReport::num_waiting)
      .def_ro("num_handoffs", &StatusReport::num_handoffs)
      .def_ro("num_steps", &StatusReport::num_steps)
      .def_ro("queued_tokens", &StatusReport::queued_tokens)
      .def_ro("counters", &StatusReport::counters)
      .def_ro("pairs", &StatusReport::pairs);
}

}  // namespace

void bind_events(nb::module_& m) {
  bind_start(m);
  bind_tokens(m);
  bind_ends(m);
  bind_store_events(m);
  bind_status(m);
}

}  // namespace crossdock
