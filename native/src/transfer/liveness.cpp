#include "liveness.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

constexpr size_t kNoticeBytes = 16;
// One connection a pair of this host; far above any fleet on one machine.
constexpr size_t kConnectionsMax = 1024;

}  // namespace

Status add_to_epoll(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return {StatusCode::kInternal, std::string("epoll_ctl: ") + std::strerror(errno)};
}

Result<std::unique_ptr<LivenessListener>> LivenessListener::create(const std::string& name,
                                                                   int epoll_fd) {
  auto fd = listen_abstract(name);
  if (!fd.ok()) return fd.status();
  Status added = add_to_epoll(epoll_fd, fd.value().get());
  if (!added.ok()) return added;
  return std::unique_ptr<LivenessListener>(new LivenessListener(std::move(fd).value(), epoll_fd));
}

std::vector<ReceivedNotice> LivenessListener::poll() {
  for (UniqueFd fd = accept_abstract(listen_fd_.get()); fd.valid();
       fd = accept_abstract(listen_fd_.get())) {
    if (connections_.size() >= kConnectionsMax || !add_to_epoll(epoll_fd_, fd.get()).ok()) continue;
    const pid_t sender = process_behind(fd.get());
    connections_.push_back({std::move(fd), sender, {}});
  }
  std::vector<ReceivedNotice> notices;
  std::erase_if(connections_, [&](Connection& connection) {
    std::byte bytes[16 * kNoticeBytes];
    for (;;) {
      const ssize_t length = ::recv(connection.fd.get(), bytes, sizeof bytes, 0);
      if (length == 0) return true;
      if (length < 0) return errno != EAGAIN && errno != EINTR;
      auto& partial = connection.partial;
      partial.insert(partial.end(), bytes, bytes + length);
      size_t used = 0;
      for (; partial.size() - used >= kNoticeBytes; used += kNoticeBytes) {
        WireReader reader(std::span<const std::byte>(partial).subspan(used, kNoticeBytes));
        const auto epoch = reader.get<uint64_t>();
        notices.push_back({{epoch, reader.get<uint64_t>()}, connection.sender});
      }
      partial.erase(partial.begin(), partial.begin() + static_cast<ptrdiff_t>(used));
    }
  });
  return notices;
}

Result<std::unique_ptr<ProcessWatch>> ProcessWatch::create(const std::string& socket_name,
                                                           pid_t process_id, int epoll_fd) {
  // The socket first: its name holds the epoch, so it cannot be that of a later process with the
  // same id, and while it is connected the id cannot be reused.
  auto socket = connect_abstract(socket_name, process_id);
  auto pidfd = open_pidfd(process_id);
  if (!pidfd.ok()) return pidfd.status();
  if (!socket.ok()) return socket.status();
  for (const int fd : {socket.value().get(), pidfd.value().get()}) {
    Status added = add_to_epoll(epoll_fd, fd);
    if (!added.ok()) return added;
  }
  return std::unique_ptr<ProcessWatch>(
      new ProcessWatch(std::move(pidfd).value(), std::move(socket).value()));
}

bool ProcessWatch::gone() {
  if (gone_) return true;
  // Nothing is ever sent in this direction, so readable means ended. A process gives its memory
  // up before it closes its files, so the end of the socket proves as much as the pidfd.
  pollfd fds[] = {{pidfd_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
  if (::poll(fds, 2, 0) <= 0) return false;
  gone_ = true;
  // Closed, so that they do not keep the epoll instance awake.
  pidfd_.reset();
  socket_.reset();
  return true;
}

void ProcessWatch::send(const ClosedNotice& notice) {
  if (gone_) return;
  WireWriter writer;
  writer.put(notice.epoch);
  writer.put(notice.incarnation);
  // A socket that is full or broken has no reader who could still act on it.
  (void)::send(socket_.get(), writer.bytes().data(), writer.bytes().size(), MSG_NOSIGNAL);
}

}  // namespace crossdock
