// A segment and its peers, for a process without an engine: the kvstore only connects and
// disconnects; bytes move by the operations of its peers.
#include "crossdock/transfer/transfer.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind.h"
#include "crossdock/transfer/transfer_thread.h"
#include "status_error.h"

namespace crossdock {

using namespace nb::literals;  // NOLINT

namespace {

// What a process that posts no operation of its own hears of.
using PeerChange = std::variant<PeerReady, PeerBroken, PeerClosed>;

std::unique_ptr<TransferThread> create_segment(std::string transport, uint64_t segment_bytes,
                                               uint64_t epoch, bool huge_pages,
                                               std::string bind_interface,
                                               std::pair<std::string, std::string> rdma_port) {
  TransportConfig config;
  config.transport = std::move(transport);
  config.segment_bytes = segment_bytes;
  config.huge_pages = huge_pages;
  config.bind_interface = std::move(bind_interface);
  std::tie(config.rdma_device, config.gid_index) = std::move(rdma_port);
  auto created = [&] {
    nb::gil_scoped_release release;  // pinning and registering the memory takes a while
    return create_ucx_transport(config, epoch);
  }();
  return std::make_unique<TransferThread>(value_or_raise(std::move(created)));
}

std::vector<PeerChange> drain(TransferThread& thread) {
  std::vector<TransferEvent> events;
  thread.drain(events);
  std::vector<PeerChange> changes;
  for (auto& event : events) {
    if (auto* ready = std::get_if<PeerReady>(&event)) changes.emplace_back(*ready);
    if (auto* broken = std::get_if<PeerBroken>(&event)) changes.emplace_back(*broken);
    if (auto* closed = std::get_if<PeerClosed>(&event)) changes.emplace_back(*closed);
  }
  return changes;
}

void bind_changes(nb::module_& m) {
  nb::class_<PeerReady>(m, "PeerReady")
      .def_ro("peer_id", &PeerReady::peer)
      .def_prop_ro("transport",
                   [](const PeerReady& ready) { return std::string(name(ready.transport)); })
      .def_prop_ro("not_shared",
                   [](const PeerReady& ready) {
                     const bool shared = ready.shared_memory == SharedMemory::kUsed;
                     return std::string(shared ? "" : describe(ready.shared_memory));
                   })
      .def_prop_ro("staged", [](const PeerReady& ready) { return to_text(ready.staged); });
  nb::class_<PeerBroken>(m, "PeerBroken")
      .def_ro("peer_id", &PeerBroken::peer)
      .def_prop_ro("code",
                   [](const PeerBroken& b) { return static_cast<uint32_t>(b.status.code()); })
      .def_prop_ro("message", [](const PeerBroken& b) { return to_text(b.status.message()); })
      .def_ro("process_gone", &PeerBroken::process_gone);
  nb::class_<PeerClosed>(m, "PeerClosed")
      .def_ro("peer_id", &PeerClosed::peer)
      .def_ro("writes_stopped", &PeerClosed::writes_stopped);
}

}  // namespace

void bind_transfer(nb::module_& m) {
  bind_changes(m);
  nb::class_<TransferThread>(m, "Segment")
      .def(nb::new_(&create_segment), nb::kw_only(), "transport"_a, "segment_bytes"_a, "epoch"_a,
           "huge_pages"_a = false, "bind_interface"_a = "",
           "rdma_port"_a = std::pair<std::string, std::string>("", "auto"))
      .def_prop_ro("descriptor",
                   [](const TransferThread& thread) {
                     const auto bytes = encode(thread.descriptor());
                     return nb::bytes(bytes.data(), bytes.size());
                   })
      .def_prop_ro("staged",
                   [](const TransferThread& thread) { return to_text(thread.descriptor().staged); })
      .def_prop_ro("event_fd", &TransferThread::event_fd)
      .def(
          "connect",
          [](TransferThread& thread, PeerId peer_id, uint64_t incarnation,
             const nb::bytes& descriptor) {
            const auto* begin = static_cast<const std::byte*>(descriptor.data());
            auto remote = value_or_raise(decode_endpoint(std::span(begin, descriptor.size())));
            thread.submit(
                Connect{.peer = peer_id, .incarnation = incarnation, .remote = std::move(remote)});
          },
          nb::kw_only(), "peer_id"_a, "incarnation"_a, "descriptor"_a)
      .def(
          "disconnect",
          [](TransferThread& thread, PeerId peer_id) {
            thread.submit(Disconnect{.peer = peer_id});
          },
          "peer_id"_a)
      .def("drain", &drain);
}

}  // namespace crossdock
