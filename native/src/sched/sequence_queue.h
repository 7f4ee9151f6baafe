// The waiting queue: links through the slots. Preempted sequences stand in front, then those that
// never ran; each group in arrival order.
#pragma once

#include <cstdint>
#include <vector>

#include "sequence.h"

namespace crossdock {

class SequenceQueue {
 public:
  explicit SequenceQueue(std::vector<Sequence>& slots) : slots_(slots) {}

  void insert(uint32_t slot);
  void remove(uint32_t slot);

  bool empty() const { return head_ == kNoSlot; }
  uint32_t size() const { return size_; }
  uint32_t front() const { return head_; }
  uint32_t after(uint32_t slot) const { return slots_[slot].next; }

 private:
  bool goes_before(const Sequence& a, const Sequence& b) const {
    if (a.was_preempted != b.was_preempted) return a.was_preempted;
    return a.arrival < b.arrival;
  }
  void link(uint32_t slot, uint32_t previous, uint32_t next);

  std::vector<Sequence>& slots_;
  uint32_t head_ = kNoSlot;
  uint32_t tail_ = kNoSlot;
  uint32_t size_ = 0;
};

}  // namespace crossdock
