// A directory of this process alone, for files that have a name only while they are made. What a
// process that was killed meanwhile left is removed by the next one: it no longer holds the lock.
#pragma once

#include <string>

#include "crossdock/sys/status.h"
#include "crossdock/sys/unique_fd.h"

namespace crossdock {

class ScratchDirectory {
 public:
  // Named crossdock-XXXXXX, beneath the parent. Removes those there that nobody holds.
  static Result<ScratchDirectory> create(const std::string& parent);

  ScratchDirectory(ScratchDirectory&&) noexcept = default;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  // Removes it with what is in it.
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  ScratchDirectory(std::string path, UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;  // invalid: moved from
};

}  // namespace crossdock
