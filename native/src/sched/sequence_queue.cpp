#include "sequence_queue.h"

namespace crossdock {

void SequenceQueue::link(uint32_t slot, uint32_t previous, uint32_t next) {
  slots_[slot].previous = previous;
  slots_[slot].next = next;
  (previous == kNoSlot ? head_ : slots_[previous].next) = slot;
  (next == kNoSlot ? tail_ : slots_[next].previous) = slot;
  ++size_;
}

void SequenceQueue::insert(uint32_t slot) {
  const Sequence& sequence = slots_[slot];
  if (sequence.was_preempted) {  // it belongs near the front
    uint32_t next = head_;
    while (next != kNoSlot && goes_before(slots_[next], sequence)) next = slots_[next].next;
    link(slot, next == kNoSlot ? tail_ : slots_[next].previous, next);
  } else {  // near the back
    uint32_t previous = tail_;
    while (previous != kNoSlot && goes_before(sequence, slots_[previous])) {
      previous = slots_[previous].previous;
    }
    link(slot, previous, previous == kNoSlot ? head_ : slots_[previous].next);
  }
}

void SequenceQueue::remove(uint32_t slot) {
  Sequence& sequence = slots_[slot];
  const uint32_t previous = sequence.previous;
  const uint32_t next = sequence.next;
  (previous == kNoSlot ? head_ : slots_[previous].next) = next;
  (next == kNoSlot ? tail_ : slots_[next].previous) = previous;
  sequence.previous = kNoSlot;
  sequence.next = kNoSlot;
  --size_;
}

}  // namespace crossdock
