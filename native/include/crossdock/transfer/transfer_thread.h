// The thread that owns a Transport. The caller's side is two queues of plain data: operations in,
// events out, each with a wake-up, so the caller never touches UCX and UCX is always driven.
//
// submit() and drain() are called by one thread (the engine's loop); everything else happens on
// the transfer thread.
#pragma once

#include <memory>
#include <vector>

#include "crossdock/transfer/transfers.h"

namespace crossdock {

class TransferThread final : public Transfers {
 public:
  // Takes the transport over and starts the thread.
  explicit TransferThread(std::unique_ptr<Transport> transport);
  ~TransferThread() override;  // stops and joins
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  std::span<std::byte> segment() override;
  const EndpointDescriptor& descriptor() const override;
  void submit(Operation operation) override;
  bool drain(std::vector<TransferEvent>& events) override;
  int event_fd() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crossdock
