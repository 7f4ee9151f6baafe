#include "crossdock/sys/scratch_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace crossdock {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "crossdock-";
// Others may take a directory for a leftover between its making and its locking.
constexpr int kTriesMax = 16;

// Invalid where another process holds it, or removed it meanwhile, or it is another user's.
UniqueFd lock_directory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info{};
  if (!fd.valid() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(fd.get(), &info) != 0 ||
      info.st_nlink == 0 || info.st_uid != ::geteuid()) {
    return {};
  }
  return fd;
}

void remove_leftovers(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with(kPrefix)) continue;
    const UniqueFd lock = lock_directory(it->path().string());
    std::error_code ignored;  // what cannot be removed harms nobody but the disk
    if (lock.valid()) fs::remove_all(it->path(), ignored);
  }
}

}  // namespace

Result<ScratchDirectory> ScratchDirectory::create(const std::string& parent) {
  remove_leftovers(parent);
  for (int tries = 0; tries < kTriesMax; ++tries) {
    std::string path = parent + "/" + kPrefix + "XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    "a directory in " + parent + " cannot be made: " + std::strerror(errno));
    }
    UniqueFd lock = lock_directory(path);
    if (lock.valid()) return ScratchDirectory(std::move(path), std::move(lock));
  }
  return Status(StatusCode::kAborted, "other processes remove what is made in " + parent);
}

ScratchDirectory::~ScratchDirectory() {
  if (!lock_.valid()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace crossdock
