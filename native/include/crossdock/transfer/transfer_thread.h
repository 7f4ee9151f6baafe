// The thread that owns a Transport. The caller's side is two queues of plain data: operations in,
// events out, each with a wake-up, so the caller never touches UCX and UCX is always driven.
//
// submit() and drain() are called by one thread (the engine's loop); everything else happens on
// the transfer thread.
#pragma once

#include <memory>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

class TransferThread {
 public:
  // Takes the transport over and starts the thread.
  explicit TransferThread(std::unique_ptr<Transport> transport);
  ~TransferThread();  // stops and joins
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  std::span<std::byte> segment();
  const EndpointDescriptor& descriptor() const;

  // Never blocks. An operation that the transport cannot take ends in an event, like any other
  // failure (OperationDone with the status, PeerBroken for Connect).
  void submit(Operation operation);
  // Appends the events that have happened, oldest first. Returns whether there were any.
  bool drain(std::vector<TransferEvent>& events);
  // Readable while drain() has something to return.
  int event_fd() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crossdock
