// One end of a pair of ours, polled by the thread that measures.
#pragma once

#include <functional>
#include <memory>

#include "two_processes.h"

namespace crossdock {

inline TransportConfig transport_config(const std::string& transport, uint64_t segment_bytes) {
  TransportConfig config;
  config.transport = transport;
  config.segment_bytes = segment_bytes;
  config.bind_interface = "lo";
  return config;
}

class OurEnd {
 public:
  // `slot` of the board, kInitiator or kTarget, gets our descriptor.
  OurEnd(Board& board, const TransportConfig& config, Board::Slot slot)
      : board_(board), transport_(must(create_ucx_transport(config, 1 + slot))) {
    board.put(slot, encode(transport_->descriptor()));
    const bool first = slot == Board::kInitiator;
    remote_ = must(decode_endpoint(board.take(first ? Board::kTarget : Board::kInitiator)));
    must(transport_->post(Connect{kPeer, kIncarnation, remote_}));
    wait([](const TransferEvent& event) { return std::holds_alternative<PeerReady>(event); });
  }

  const EndpointDescriptor& remote() const { return remote_; }
  std::span<std::byte> segment() { return transport_->segment(); }

  void write(uint64_t bytes) {
    must(transport_->post(WriteSpans{1, kPeer, {{0, 0, bytes}}}));
    must(transport_->post(Fence{2, kPeer}));
    wait_done(2);
  }
  void read_back(uint64_t bytes) {
    must(transport_->post(ReadSpans{3, kPeer, {{kSizeMax, 0, bytes}}}));
    wait_done(3);
  }
  void notify(std::span<const std::byte> message) {
    must(transport_->post(Notify{kPeer, {message.begin(), message.end()}}));
  }
  std::vector<std::byte> wait_message() {
    std::vector<std::byte> message;
    wait([&](const TransferEvent& event) {
      const auto* arrived = std::get_if<MessageArrived>(&event);
      if (arrived != nullptr) message = arrived->message;
      return arrived != nullptr;
    });
    return message;
  }

 private:
  void wait_done(OperationId operation) {
    wait([&](const TransferEvent& event) {
      const auto* done = std::get_if<OperationDone>(&event);
      if (done == nullptr || done->operation != operation) return false;
      must(done->status);
      return true;
    });
  }
  void wait(const std::function<bool(const TransferEvent&)>& wanted) {
    const auto deadline = SteadyClock::now() + kWaitMax;
    for (;;) {
      events_.clear();
      transport_->poll(events_);
      bool found = false;
      for (const TransferEvent& event : events_) {
        if (std::holds_alternative<PeerBroken>(event)) leave();
        found = found || wanted(event);
      }
      if (found) return;
      if (SteadyClock::now() > deadline) fail("no answer in time");
    }
  }

  // The initiator leaves first, when it is done.
  [[noreturn]] void leave() const {
    if (board_.phase.load() != Board::kEnd) fail("the peer broke");
    std::_Exit(0);
  }

  Board& board_;
  std::unique_ptr<Transport> transport_;
  EndpointDescriptor remote_;
  std::vector<TransferEvent> events_;
};

}  // namespace crossdock
