#include "crossdock/sys/spsc_ring.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <new>
#include <string>

#include "crossdock/sys/shared_memory.h"

namespace crossdock {
namespace {

constexpr uint64_t kMagic = 0x3152'474e'4952'4443;  // "CDRINGR1"
constexpr uint32_t kVersion = 1;
constexpr size_t kCapacityBytesMin = 4096;
constexpr size_t kCacheLineBytes = 64;

using RecordLength = uint32_t;
constexpr size_t kRecordAlignment = 8;

// Bytes of the ring that a record takes.
uint64_t footprint(uint64_t record_bytes) {
  return (sizeof(RecordLength) + record_bytes + kRecordAlignment - 1) & ~(kRecordAlignment - 1);
}

bool valid_capacity(uint64_t capacity) {
  return capacity >= kCapacityBytesMin && std::has_single_bit(capacity);
}

}  // namespace

// Each index has a cache line of its own, so that the sides do not slow each other down.
struct SpscRing::Header {
  std::atomic<uint64_t> magic;
  uint32_t version;
  uint64_t capacity_bytes;
  alignas(kCacheLineBytes) std::atomic<uint64_t> tail;
  alignas(kCacheLineBytes) std::atomic<uint64_t> head;
  alignas(kCacheLineBytes) std::atomic<uint32_t> sleeping;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would not span processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "a lock would not span processes");

size_t SpscRing::memory_bytes(size_t capacity_bytes) { return sizeof(Header) + capacity_bytes; }

void SpscRing::format(std::byte* memory, size_t capacity_bytes) {
  assert(valid_capacity(capacity_bytes));
  assert(reinterpret_cast<uintptr_t>(memory) % kCacheLineBytes == 0);
  auto* header = new (memory) Header{};
  header->version = kVersion;
  header->capacity_bytes = capacity_bytes;
  header->magic.store(kMagic, std::memory_order_release);
}

Result<SpscRing> SpscRing::attach(std::byte* memory, size_t memory_bytes, int wake_fd) {
  assert(reinterpret_cast<uintptr_t>(memory) % kCacheLineBytes == 0);
  if (memory_bytes < SpscRing::memory_bytes(kCapacityBytesMin)) {
    return Status(StatusCode::kFailedPrecondition,
                  "memory of " + std::to_string(memory_bytes) + " bytes is too small for a ring");
  }
  const auto* header = reinterpret_cast<const Header*>(memory);
  if (header->magic.load(std::memory_order_acquire) != kMagic) {
    return Status(StatusCode::kFailedPrecondition, "the memory holds no ring");
  }
  if (header->version != kVersion) {
    return Status(StatusCode::kFailedPrecondition,
                  "the ring has version " + std::to_string(header->version) + ", expected " +
                      std::to_string(kVersion) + "; both processes must be of one release");
  }
  const uint64_t capacity = header->capacity_bytes;
  if (!valid_capacity(capacity) || capacity > memory_bytes - sizeof(Header)) {
    return Status(StatusCode::kFailedPrecondition, "the ring claims " + std::to_string(capacity) +
                                                       " bytes, the memory has " +
                                                       std::to_string(memory_bytes));
  }
  SpscRing ring(memory, capacity, wake_fd);
  if (ring.tail_ - ring.head_ > capacity) {
    return Status(StatusCode::kFailedPrecondition, "the ring's indices contradict its capacity");
  }
  return ring;
}

SpscRing::SpscRing(std::byte* memory, size_t capacity_bytes, int wake_fd)
    : header_(reinterpret_cast<Header*>(memory)),
      bytes_(memory + sizeof(Header)),
      capacity_(capacity_bytes),
      tail_(0),
      head_(header_->head.load(std::memory_order_acquire)),
      wake_fd_(wake_fd) {
  // After the head, so that a ring in use does not look over-full or negative.
  tail_ = header_->tail.load(std::memory_order_acquire);
}

size_t SpscRing::max_record_bytes() const { return capacity_ / 2 - sizeof(RecordLength); }

bool SpscRing::push(std::span<const std::byte> record) {
  assert(record.size() <= max_record_bytes());
  const uint64_t used = tail_ - header_->head.load(std::memory_order_acquire);
  if (used > capacity_) corrupt_ = true;
  if (corrupt_ || footprint(record.size()) > capacity_ - used) return false;
  const auto length = static_cast<RecordLength>(record.size());
  copy_in(tail_, std::as_bytes(std::span(&length, 1)));
  copy_in(tail_ + sizeof length, record);
  tail_ += footprint(record.size());
  header_->tail.store(tail_, std::memory_order_seq_cst);
  // The exchange makes one system call of many pushes to one sleep.
  if (header_->sleeping.load(std::memory_order_seq_cst) != 0 &&
      header_->sleeping.exchange(0, std::memory_order_seq_cst) != 0) {
    signal_eventfd(wake_fd_);
  }
  return true;
}

bool SpscRing::pop(std::vector<std::byte>& record) {
  const uint64_t available = header_->tail.load(std::memory_order_acquire) - head_;
  if (available == 0 || corrupt_) return false;
  RecordLength length = 0;
  if (available > capacity_ || available < footprint(0)) return (corrupt_ = true, false);
  copy_out(head_, std::as_writable_bytes(std::span(&length, 1)));
  if (length > max_record_bytes() || footprint(length) > available) return (corrupt_ = true, false);
  record.resize(length);
  copy_out(head_ + sizeof length, record);
  head_ += footprint(length);
  header_->head.store(head_, std::memory_order_release);
  return true;
}

bool SpscRing::empty() const {
  return corrupt_ || header_->tail.load(std::memory_order_acquire) == head_;
}

bool SpscRing::prepare_sleep() {
  header_->sleeping.store(1, std::memory_order_seq_cst);
  if (corrupt_ || header_->tail.load(std::memory_order_seq_cst) == head_) return true;
  header_->sleeping.store(0, std::memory_order_relaxed);
  return false;
}

void SpscRing::finish_sleep() {
  header_->sleeping.store(0, std::memory_order_relaxed);
  drain_eventfd(wake_fd_);
}

void SpscRing::copy_in(uint64_t position, std::span<const std::byte> bytes) {
  const uint64_t offset = position & (capacity_ - 1);
  const size_t first = std::min<size_t>(bytes.size(), capacity_ - offset);
  if (first != 0) std::memcpy(bytes_ + offset, bytes.data(), first);
  if (first != bytes.size()) std::memcpy(bytes_, bytes.data() + first, bytes.size() - first);
}

void SpscRing::copy_out(uint64_t position, std::span<std::byte> bytes) const {
  const uint64_t offset = position & (capacity_ - 1);
  const size_t first = std::min<size_t>(bytes.size(), capacity_ - offset);
  if (first != 0) std::memcpy(bytes.data(), bytes_ + offset, first);
  if (first != bytes.size()) std::memcpy(bytes.data() + first, bytes_, bytes.size() - first);
}

}  // namespace crossdock
