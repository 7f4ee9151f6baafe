// Files that are made once and read many times, in a directory, bounded in bytes: those that share
// an extension share the bound.
//
// A file appears whole or not at all: it is written beside its name, under a lock that dies with
// its writer, and renamed. What a killed writer leaves is taken over by the next one or removed.
// Any number of processes may use the directory at once. What a crash of the machine tears is the
// reader's to notice: contents carry a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/status.h"

namespace crossdock {

class FileCache {
 public:
  FileCache(std::string directory, uint64_t bytes_max)
      : directory_(std::move(directory)), bytes_max_(bytes_max) {}

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  // NOT_FOUND when there is no such file. Marks it as used: the least lately used go first.
  Result<MappedFile> open(const std::string& name) const;
  // Makes or replaces the file from `parts`, one after the other; older files make room for it.
  // RESOURCE_EXHAUSTED: more than the bound, or the disk is full; FAILED_PRECONDITION: the
  // directory cannot be written; ABORTED: another process is writing the same file. The error
  // names the path, and what was there before is still there.
  Status write(const std::string& name, std::span<const std::span<const std::byte>> parts) const;

 private:
  Status make_room(const std::string& name, uint64_t size_bytes) const;

  const std::string directory_;
  const uint64_t bytes_max_;
};

}  // namespace crossdock
