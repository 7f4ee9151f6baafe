#include "crossdock/sys/process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace crossdock {
namespace {

constexpr int kListenBacklog = 128;

std::string namespace_of_self(const char* kind) {
  char target[64];
  const std::string path = std::string("/proc/self/ns/") + kind;
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  return length < 0 ? std::string("unknown") : std::string(target, static_cast<size_t>(length));
}

Status socket_failed(const char* what, const std::string& name, int error) {
  StatusCode code = StatusCode::kUnavailable;
  if (error == EADDRINUSE) code = StatusCode::kAlreadyExists;
  if (error == EMFILE || error == ENFILE) code = StatusCode::kResourceExhausted;
  return {code, std::string(what) + " of abstract socket " + name + ": " + std::strerror(error)};
}

// The length leaves out what follows the name: an abstract name may hold zero bytes, so padding
// would belong to it.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  assert(!name.empty() && name.size() < sizeof address.sun_path);
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

UniqueFd stream_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

std::string host_identity() {
  std::string boot_id = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return boot_id + " " + namespace_of_self("pid") + " " + namespace_of_self("ipc");
}

Result<UniqueFd> open_pidfd(pid_t process_id) {
  // By number, because this glibc has no wrapper for it.
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process_id, 0)));
  if (fd.valid()) return fd;
  const int error = errno;
  return Status(
      error == ESRCH || error == EINVAL ? StatusCode::kNotFound : StatusCode::kUnavailable,
      "pidfd_open of process " + std::to_string(process_id) + ": " + std::strerror(error));
}

bool process_ended(int pidfd) {
  pollfd fd{pidfd, POLLIN, 0};
  return ::poll(&fd, 1, 0) == 1;
}

Result<UniqueFd> listen_abstract(const std::string& name) {
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  UniqueFd fd = stream_socket();
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kListenBacklog) != 0) {
    return socket_failed("listen", name, errno);
  }
  return fd;
}

Result<UniqueFd> connect_abstract(const std::string& name, pid_t expected_process_id) {
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  UniqueFd fd = stream_socket();
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return socket_failed("connect", name, errno);
  }
  const pid_t owner = process_behind(fd.get());
  if (owner != expected_process_id) {
    return Status(StatusCode::kFailedPrecondition,
                  "abstract socket " + name + " belongs to process " + std::to_string(owner) +
                      ", expected " + std::to_string(expected_process_id));
  }
  return fd;
}

UniqueFd accept_abstract(int listen_fd) {
  return UniqueFd(::accept4(listen_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

pid_t process_behind(int socket_fd) {
  ucred process{};
  socklen_t num_bytes = sizeof process;
  const int rc = ::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &process, &num_bytes);
  return rc == 0 ? process.pid : 0;
}

}  // namespace crossdock
