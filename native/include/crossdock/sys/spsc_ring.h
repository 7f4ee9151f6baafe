// A lock-free ring of variable-length records for one producer and one consumer, in memory that
// two processes may share, with an eventfd that wakes a sleeping consumer.
//
// Theory of operation. `tail` counts the bytes ever pushed and `head` those ever popped; each has
// one writer. A record is a 32-bit length and its bytes, padded to eight. The producer copies a
// record in and only then moves the tail, so a producer that is killed half way has pushed nothing.
//
// Neither side trusts the other: each keeps its own index privately, takes a copy of the other's,
// and checks that copy, and a record's length, against the capacity before it touches a byte. A
// ring whose other side broke the rules is `corrupt`: nothing goes in or comes out any more.
//
// Sleeping. The consumer sets `sleeping` and then looks at the tail once more; the producer moves
// the tail and then looks at `sleeping`. These four accesses are sequentially consistent, so in
// their single total order at least one side sees the other: the consumer sees the record and does
// not sleep, or the producer sees the sleeper and writes the eventfd (Dekker's argument). With
// anything weaker both loads could pass their own stores and a record would lie unseen. It costs
// the producer one full fence a push, and a system call only when the consumer sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

// A view: the memory and the descriptor belong to the caller and must outlive it. One thread (of
// either process) calls the producer's methods, one the consumer's, each on its own view; several
// views of one side at a time would each count for itself, so a view moves and is not copied.
class SpscRing {
 public:
  // What a ring of this capacity needs. The capacity is a power of two of at least 4,096.
  static size_t memory_bytes(size_t capacity_bytes);
  // Makes an empty ring; once, before either side attaches. The memory is aligned to 64 bytes.
  static void format(std::byte* memory, size_t capacity_bytes);
  // FAILED_PRECONDITION when the memory holds no ring of this version or is too small for it.
  // `wake_fd` is a non-blocking eventfd.
  static Result<SpscRing> attach(std::byte* memory, size_t memory_bytes, int wake_fd);

  SpscRing(SpscRing&&) = default;
  SpscRing& operator=(SpscRing&&) = default;
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // ---- producer ----
  // False when the record does not fit now. A record over max_record_bytes() is a programmer error.
  bool push(std::span<const std::byte> record);
  size_t max_record_bytes() const;

  // ---- consumer ----
  // Replaces `record` by the oldest one. False when there is none.
  bool pop(std::vector<std::byte>& record);
  bool empty() const;
  // Before sleeping on wake_fd: true means sleep, the next push wakes; false means a record came.
  bool prepare_sleep();
  // After waking, or when the caller decides not to sleep after all.
  void finish_sleep();

  // ---- both ----
  // The other side broke the rules of the ring. It stays so; treat that process as dead.
  bool corrupt() const { return corrupt_; }
  int wake_fd() const { return wake_fd_; }

 private:
  struct Header;
  SpscRing(std::byte* memory, size_t capacity_bytes, int wake_fd);

  void copy_in(uint64_t position, std::span<const std::byte> bytes);
  void copy_out(uint64_t position, std::span<std::byte> bytes) const;

  Header* header_;
  std::byte* bytes_;
  uint64_t capacity_;
  uint64_t tail_;  // the producer's own; its copy in the header is never read back
  uint64_t head_;  // the consumer's own, likewise
  int wake_fd_;
  bool corrupt_ = false;
};

}  // namespace crossdock
