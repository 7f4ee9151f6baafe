// A file mapped read-only, and page-aligned memory that the kernel backs with huge pages where it
// can: what loading weights needs of the OS.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "crossdock/sys/status.h"

namespace crossdock {

// The bytes stay valid while the object lives. The file must not be truncated meanwhile.
class MappedFile {
 public:
  // NOT_FOUND or INVALID_ARGUMENT names the path. An empty file maps to an empty span.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {address_, size_}; }

 private:
  MappedFile(const std::byte* address, size_t size) : address_(address), size_(size) {}
  void release();

  const std::byte* address_ = nullptr;
  size_t size_ = 0;
};

// Zeroed memory aligned to 2 MiB.
class PageBuffer {
 public:
  PageBuffer() = default;
  static Result<PageBuffer> allocate(size_t size_bytes);
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace crossdock
