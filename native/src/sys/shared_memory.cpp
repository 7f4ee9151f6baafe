#include "crossdock/sys/shared_memory.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace crossdock {
namespace {

std::string describe_errno(int error) {
  return std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")";
}

uint64_t mem_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// What is left under cgroup v2's limit as a container sees it; the maximum where there is none.
uint64_t cgroup_left_bytes() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream current_file("/sys/fs/cgroup/memory.current");
  uint64_t limit = 0;
  uint64_t current = 0;
  if (!(limit_file >> limit) || !(current_file >> current)) return UINT64_MAX;
  return limit > current ? limit - current : 0;
}

Status no_memory(size_t bytes, uint64_t available, const std::string& why) {
  return {StatusCode::kResourceExhausted,
          "shared memory of " + std::to_string(bytes) + " bytes cannot be allocated, " +
              std::to_string(available) + " bytes are available: " + why +
              "; ask for less, or raise the memory limit of this machine or container"};
}

}  // namespace

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

uint64_t available_memory_bytes() {
  const uint64_t machine = mem_available_bytes();
  return machine == 0 ? 0 : std::min(machine, cgroup_left_bytes());
}

uint64_t available_shared_memory_bytes() {
  struct statvfs info{};
  if (::statvfs(kSharedMemoryDirectory, &info) != 0) return 0;
  return uint64_t{info.f_bavail} * info.f_frsize;
}

bool may_lock_memory(size_t bytes) {
  // Nothing is allocated: the kernel compares the limit first, and locks pages when they come.
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  const bool locked = ::mlock2(mapped, bytes, MLOCK_ONFAULT) == 0;
  ::munmap(mapped, bytes);
  return locked;
}

Result<MappedMemory> MappedMemory::create(const std::string& name, size_t bytes) {
  if (bytes == 0) return Status(StatusCode::kInvalidArgument, "bytes is 0, must be at least 1");
  // Checked first, because allocating page by page would bring the out-of-memory killer before
  // it brought an error.
  const uint64_t available = available_memory_bytes();
  if (available != 0 && bytes > available) return no_memory(bytes, available, "too little memory");
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    const int error = errno;
    return Status(StatusCode::kResourceExhausted,
                  "memfd_create failed: " + describe_errno(error) +
                      (error == EMFILE ? "; raise the limit of open files (ulimit -n)" : ""));
  }
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) return no_memory(bytes, available, describe_errno(error));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status(StatusCode::kInternal, "sealing a memfd failed: " + describe_errno(errno));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return no_memory(bytes, available, describe_errno(errno));
  return MappedMemory(std::move(fd), static_cast<std::byte*>(data), bytes);
}

Result<MappedMemory> MappedMemory::map(int fd, size_t bytes) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) {
    return Status(StatusCode::kInvalidArgument, "descriptor " + std::to_string(fd) +
                                                    " of shared memory: " + describe_errno(errno));
  }
  if (bytes == 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return Status(StatusCode::kFailedPrecondition,
                  "shared memory of " + std::to_string(bytes) + " bytes wanted, descriptor " +
                      std::to_string(fd) + " has " + std::to_string(info.st_size));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "descriptor " + std::to_string(fd) +
                      " is no memfd sealed against shrinking; pass one that MappedMemory created");
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return no_memory(bytes, available_memory_bytes(), describe_errno(errno));
  }
  return MappedMemory(UniqueFd(), static_cast<std::byte*>(data), bytes);
}

MappedMemory::MappedMemory(UniqueFd fd, std::byte* data, size_t bytes)
    : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<EventFd> EventFd::create() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) {
    return Status(
        StatusCode::kResourceExhausted,
        "eventfd failed: " + describe_errno(errno) + "; raise the limit of open files (ulimit -n)");
  }
  return EventFd(std::move(fd));
}

void EventFd::signal() const { signal_eventfd(fd_.get()); }
void EventFd::drain() const { drain_eventfd(fd_.get()); }

void signal_eventfd(int fd) {
  const uint64_t one = 1;
  // EAGAIN means that the counter is at its maximum, so it is readable already.
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void drain_eventfd(int fd) {
  uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace crossdock
