#include "crossdock/sys/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace crossdock {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

Status file_error(const std::string& path, int error) {
  const auto code =
      error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
  return Status(code, path + ": cannot be read: " + std::strerror(error));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return file_error(path, errno);
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return file_error(path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Status(StatusCode::kInvalidArgument, path + ": is not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* address = nullptr;
  int error = 0;
  if (size > 0) {
    address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    error = errno;
  }
  close(fd);
  if (address == MAP_FAILED) return file_error(path, error);
  return MappedFile(static_cast<const std::byte*>(address), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    release();
    address_ = std::exchange(other.address_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { release(); }

void MappedFile::release() {
  if (address_ != nullptr) munmap(const_cast<std::byte*>(address_), size_);
}

Result<PageBuffer> PageBuffer::allocate(size_t size_bytes) {
  PageBuffer buffer;
  if (size_bytes == 0) return buffer;
  // mmap aligns to small pages only, so one huge page more is mapped and the ends are given back.
  const size_t size = (size_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* raw = mmap(nullptr, size + kHugePageBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted,
                  "cannot map " + std::to_string(size_bytes) + " bytes: " + std::strerror(errno));
  }
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > begin) munmap(raw, aligned - begin);
  const uintptr_t end = begin + size + kHugePageBytes;
  if (end > aligned + size) munmap(reinterpret_cast<void*>(aligned + size), end - aligned - size);
  buffer.data_ = reinterpret_cast<std::byte*>(aligned);
  buffer.size_ = size;
  // Advice only: a kernel without transparent huge pages serves small ones.
  madvise(buffer.data_, size, MADV_HUGEPAGE);
  return buffer;
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

PageBuffer::~PageBuffer() { release(); }

void PageBuffer::release() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace crossdock
