// The shared memory between a front and its engine: a control page and two rings.
//
//   [ control page | ring front -> engine | ring engine -> front ]
//
// The front creates it and the engine inherits three descriptors: the memory and one eventfd a
// direction. Each end is used by one thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "crossdock/engine/messages.h"
#include "crossdock/sys/shared_memory.h"
#include "crossdock/sys/spsc_ring.h"

namespace crossdock {

// In shared memory: plain words and lock-free atomics only.
struct LinkControl {
  uint64_t magic = 0;
  uint64_t ring_bytes = 0;
  std::atomic<uint64_t> progress{0};  // moves with every layer of a step
  std::atomic<uint32_t> in_step{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class FrontLink {
 public:
  static Result<FrontLink> create(size_t ring_bytes);

  int memory_fd() const { return memory_.fd(); }
  int to_engine_fd() const { return to_engine_wake_.fd(); }
  int to_front_fd() const { return to_front_wake_.fd(); }

  // RESOURCE_EXHAUSTED when the ring is full now, INVALID_ARGUMENT when the record never fits,
  // DATA_LOSS when the engine broke the ring.
  Status send(const link::Command& command);
  // Every event there is; the wake-up is armed when it returns.
  Result<std::vector<link::Event>> receive();
  uint64_t progress() const { return control_->progress.load(std::memory_order_relaxed); }
  bool in_step() const { return control_->in_step.load(std::memory_order_relaxed) != 0; }

 private:
  FrontLink(MappedMemory memory, EventFd to_engine, EventFd to_front, SpscRing outgoing,
            SpscRing incoming);

  MappedMemory memory_;
  EventFd to_engine_wake_;
  EventFd to_front_wake_;
  SpscRing outgoing_;
  SpscRing incoming_;
  LinkControl* control_;
  std::vector<std::byte> record_;
};

class EngineLink {
 public:
  static Result<EngineLink> attach(int memory_fd, int to_engine_fd, int to_front_fd);

  // Never blocks: what does not fit now waits here, in order, for the next send or flush. The
  // front bounds what can pile up, since it bounds the requests it has accepted.
  void send(const link::Event& event);
  bool flush();  // false while something still waits
  // The oldest command, or nothing; a malformed one is an error.
  Result<std::optional<link::Command>> receive();

  int wake_fd() const { return incoming_.wake_fd(); }
  bool prepare_sleep() { return incoming_.prepare_sleep(); }
  void finish_sleep() { incoming_.finish_sleep(); }

  void set_in_step(bool in_step) { control_->in_step.store(in_step, std::memory_order_relaxed); }
  void count_progress() { control_->progress.fetch_add(1, std::memory_order_relaxed); }

 private:
  EngineLink(MappedMemory memory, SpscRing incoming, SpscRing outgoing);

  MappedMemory memory_;
  SpscRing incoming_;
  SpscRing outgoing_;
  LinkControl* control_;
  std::deque<std::vector<std::byte>> waiting_;
  std::vector<std::byte> record_;
};

}  // namespace crossdock
