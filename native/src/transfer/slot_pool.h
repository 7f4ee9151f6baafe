// Values in slots that keep their place and are used again, so that what comes and goes with every
// operation takes nothing from the heap.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace crossdock {

template <typename T>
class SlotPool {
 public:
  // A slot with a value as constructed. References to other slots stay valid.
  uint32_t acquire() {
    if (free_.empty()) {
      slots_.emplace_back();
      return static_cast<uint32_t>(slots_.size() - 1);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void release(uint32_t slot) {
    slots_[slot] = T{};
    free_.push_back(slot);
  }
  T& operator[](uint32_t slot) { return slots_[slot]; }
  const T& operator[](uint32_t slot) const { return slots_[slot]; }
  size_t num_used() const { return slots_.size() - free_.size(); }

 private:
  std::deque<T> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace crossdock
