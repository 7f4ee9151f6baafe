// What a loop asks of the transfers beside it: operations in, events out, and nothing blocks. The
// transfer thread is one; a simulation has another.
#pragma once

#include <span>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

// One thread calls it.
class Transfers {
 public:
  virtual ~Transfers() = default;
  // The registered arena.
  virtual std::span<std::byte> segment() = 0;
  virtual const EndpointDescriptor& descriptor() const = 0;

  // Never blocks. An operation that the transport cannot take ends in an event, like any other
  // failure (OperationDone with the status, PeerBroken for Connect).
  virtual void submit(Operation operation) = 0;
  // Appends the events that have happened, oldest first. Returns whether there were any.
  virtual bool drain(std::vector<TransferEvent>& events) = 0;
  // Readable while drain() has something to return.
  virtual int event_fd() const = 0;
};

}  // namespace crossdock
