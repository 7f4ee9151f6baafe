#include "crossdock/sys/file_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "crossdock/sys/unique_fd.h"

namespace crossdock {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";

Status write_error(const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Status(full ? StatusCode::kResourceExhausted : StatusCode::kFailedPrecondition,
                path + ": cannot be written: " + std::strerror(error));
}

// The file, open and locked, or an invalid descriptor and errno.
UniqueFd lock_file(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid() || flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

// Between opening and locking, another writer may have renamed the file away.
bool is_still(const UniqueFd& fd, const std::string& path) {
  struct stat held{}, named{};
  return fstat(fd.get(), &held) == 0 && stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

bool fill(int fd, std::span<const std::span<const std::byte>> parts) {
  if (ftruncate(fd, 0) != 0) return false;
  return std::ranges::all_of(parts, [&](const auto& part) { return write_all(fd, part); });
}

struct Entry {
  fs::path path;
  fs::file_time_type used;
  uint64_t size_bytes = 0;
};

// Removes what killed writers left; a file whose writer lives is locked.
void remove_leftover(const fs::path& path) {
  const UniqueFd fd = lock_file(path.string(), 0);
  if (fd.valid() && is_still(fd, path.string())) unlink(path.c_str());
}

}  // namespace

Result<MappedFile> FileCache::open(const std::string& name) const {
  auto file = MappedFile::open(path(name));
  // Only the order of eviction hangs on it, so a directory that cannot be written is no error.
  if (file.ok()) utimensat(AT_FDCWD, path(name).c_str(), nullptr, 0);
  return file;
}

Status FileCache::make_room(const std::string& name, uint64_t size_bytes) const {
  if (size_bytes > bytes_max_) {
    return Status(StatusCode::kResourceExhausted, path(name) + ": " + std::to_string(size_bytes) +
                                                      " bytes are more than the cache holds, " +
                                                      std::to_string(bytes_max_));
  }
  std::vector<Entry> entries;
  uint64_t total = size_bytes;
  std::error_code error;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const fs::path& file = it->path();
    if (file.stem() == name || file.filename() == name) continue;
    if (file.extension() == kPartial) remove_leftover(file);
    if (file.extension() != fs::path(name).extension()) continue;
    std::error_code gone;  // another process may remove it meanwhile
    const Entry entry{file, it->last_write_time(gone), it->file_size(gone)};
    if (gone) continue;
    entries.push_back(entry);
    total += entry.size_bytes;
  }
  std::ranges::sort(entries, {}, &Entry::used);
  for (const Entry& entry : entries) {
    if (total <= bytes_max_) break;
    std::error_code gone;
    fs::remove(entry.path, gone);
    total -= entry.size_bytes;
  }
  return {};
}

Status FileCache::write(const std::string& name,
                        std::span<const std::span<const std::byte>> parts) const {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return write_error(directory_, error.value());
  uint64_t size_bytes = 0;
  for (const auto& part : parts) size_bytes += part.size();
  const std::string partial = path(name) + kPartial;
  const UniqueFd fd = lock_file(partial, O_CREAT);
  if (!fd.valid() && errno != EWOULDBLOCK) return write_error(partial, errno);
  if (!fd.valid() || !is_still(fd, partial)) {
    return Status(StatusCode::kAborted, partial + ": another process is writing it");
  }
  Status status = make_room(name, size_bytes);
  if (status.ok() && !fill(fd.get(), parts)) status = write_error(partial, errno);
  if (status.ok() && rename(partial.c_str(), path(name).c_str()) != 0) {
    status = write_error(path(name), errno);
  }
  if (!status.ok()) unlink(partial.c_str());
  return status;
}

}  // namespace crossdock
