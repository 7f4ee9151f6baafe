// A lock-free queue of values between two threads of one process. Unbounded: push never waits and
// never fails, since its caller is a loop that must not block; whoever pushes bounds what is
// outstanding. Sleeping follows the protocol of spsc_ring.h, whose header has the argument.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>

#include "crossdock/sys/shared_memory.h"

namespace crossdock {

// One thread calls push, one the rest. The eventfd is borrowed.
template <typename T>
class SpscQueue {
 public:
  explicit SpscQueue(const EventFd& wake) : wake_(wake), head_(new Segment), tail_(head_) {}
  ~SpscQueue() {
    while (head_ != nullptr) delete std::exchange(head_, head_->next.load());
  }
  SpscQueue(const SpscQueue&) = delete;
  SpscQueue& operator=(const SpscQueue&) = delete;

  // ---- producer ----
  void push(T value) {
    if (tail_index_ == kSegmentValues) {
      auto* segment = new Segment;
      tail_->next.store(segment);
      tail_ = segment;
      tail_index_ = 0;
    }
    tail_->values[tail_index_].emplace(std::move(value));
    tail_->num_ready.store(++tail_index_);
    if (sleeping_.load() && sleeping_.exchange(false)) wake_.signal();
  }

  // ---- consumer ----
  std::optional<T> pop() {
    if (empty()) return std::nullopt;
    if (head_index_ == kSegmentValues) {
      delete std::exchange(head_, head_->next.load());
      head_index_ = 0;
    }
    std::optional<T> value = std::move(head_->values[head_index_]);
    head_->values[head_index_++].reset();
    return value;
  }
  bool empty() const {
    if (head_index_ < kSegmentValues) return head_->num_ready.load() == head_index_;
    const Segment* next = head_->next.load();
    return next == nullptr || next->num_ready.load() == 0;
  }
  // True: sleep on the eventfd, the next push wakes. False: a value came, do not sleep.
  bool prepare_sleep() {
    sleeping_.store(true);
    if (empty()) return true;
    sleeping_.store(false);
    return false;
  }
  void finish_sleep() {
    sleeping_.store(false);
    wake_.drain();
  }

 private:
  static constexpr size_t kSegmentValues = 64;
  static constexpr size_t kCacheLineBytes = 64;
  struct Segment {
    std::array<std::optional<T>, kSegmentValues> values;
    std::atomic<size_t> num_ready = 0;
    std::atomic<Segment*> next = nullptr;
  };

  // Every atomic access is sequentially consistent: the loads cost nothing more on x86, and the
  // store in push is the full fence that sleeping needs.
  const EventFd& wake_;
  alignas(kCacheLineBytes) Segment* head_;  // the consumer's
  size_t head_index_ = 0;
  alignas(kCacheLineBytes) Segment* tail_;  // the producer's
  size_t tail_index_ = 0;
  alignas(kCacheLineBytes) std::atomic<bool> sleeping_ = false;
};

}  // namespace crossdock
