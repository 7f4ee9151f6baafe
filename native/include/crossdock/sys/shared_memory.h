// Memory that two processes share, and the descriptor that wakes one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "crossdock/sys/status.h"
#include "crossdock/sys/unique_fd.h"

namespace crossdock {

// What may still be allocated: MemAvailable, or what is left under the cgroup's limit if that is
// less. Zero when neither can be read.
uint64_t available_memory_bytes();

// The file system of POSIX shared memory.
inline constexpr const char* kSharedMemoryDirectory = "/dev/shm";

// What is left of it. Zero when it is not mounted.
uint64_t available_shared_memory_bytes();
// Whether the kernel lets this process lock so many bytes: by the limit of ulimit -l, or by right.
bool may_lock_memory(size_t bytes);

// An anonymous file in memory, mapped. Every page is allocated at creation, so a machine with too
// little memory gives RESOURCE_EXHAUSTED here and no SIGBUS later, and the size is sealed, so the
// other process cannot take pages away.
class MappedMemory {
 public:
  static Result<MappedMemory> create(const std::string& name, size_t bytes);
  // Maps what another process created. The descriptor is borrowed: the mapping outlives it.
  // FAILED_PRECONDITION when the file is smaller than `bytes`, or could still be shrunk.
  static Result<MappedMemory> map(int fd, size_t bytes);

  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  // Closed on exec; -1 when this is the mapping of a borrowed descriptor.
  int fd() const { return fd_.get(); }

 private:
  MappedMemory(UniqueFd fd, std::byte* data, size_t bytes);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A counter that poll sees. Non-blocking and closed on exec. Every method may run in any thread.
class EventFd {
 public:
  static Result<EventFd> create();

  int fd() const { return fd_.get(); }
  void signal() const;
  void drain() const;  // afterwards not readable until the next signal

 private:
  explicit EventFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// The same on a descriptor that someone else owns. The descriptor must be non-blocking.
void signal_eventfd(int fd);
void drain_eventfd(int fd);

}  // namespace crossdock
