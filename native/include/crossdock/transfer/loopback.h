// A Transport inside one process, for tests of what is built on it: no UCX, no sockets, and every
// event comes from a poll.
#pragma once

#include <memory>
#include <utility>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

// The place where loopback transports find each other. Transports of one hub may be driven by
// different threads; each one by a single thread, like any Transport. The hub lives as long as
// its transports.
class LoopbackHub {
 public:
  LoopbackHub();
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  // `epoch` names the transport within the hub: ALREADY_EXISTS when it is taken.
  Result<std::unique_ptr<Transport>> create_transport(const TransportConfig& config,
                                                      uint64_t epoch);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// Two transports on a hub of their own.
std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> create_loopback_pair(
    const TransportConfig& config, uint64_t first_epoch, uint64_t second_epoch);

}  // namespace crossdock
