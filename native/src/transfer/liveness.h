// Who of this host is alive. Each transport listens on an abstract Unix socket, and each side of a
// pair connects to the other's: the socket's end, or the pidfd, proves that a process is gone.
//
// The same socket carries one kind of record, a ClosedNotice: the sender has closed its side of a
// pair and will touch the receiver's memory no more. Over shared memory, where no endpoint can be
// closed under a writer, that is the only proof short of the writer's death; anybody may connect to
// an abstract socket, so the kernel is asked whose word it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crossdock/sys/process.h"
#include "crossdock/sys/status.h"

namespace crossdock {

struct ClosedNotice {
  uint64_t epoch = 0;  // of the side that has closed
  uint64_t incarnation = 0;
};
struct ReceivedNotice {
  ClosedNotice notice;
  pid_t sender = 0;
};

// The listening side. Its descriptors are added to the epoll instance given.
class LivenessListener {
 public:
  static Result<std::unique_ptr<LivenessListener>> create(const std::string& name, int epoll_fd);

  // Takes new connections and reads what came on the old ones.
  std::vector<ReceivedNotice> poll();

 private:
  struct Connection {
    UniqueFd fd;
    pid_t sender = 0;
    std::vector<std::byte> partial;
  };
  LivenessListener(UniqueFd fd, int epoll_fd) : listen_fd_(std::move(fd)), epoll_fd_(epoll_fd) {}

  UniqueFd listen_fd_;
  int epoll_fd_;
  std::vector<Connection> connections_;
};

// The watching side, on one process.
class ProcessWatch {
 public:
  // NOT_FOUND when the process has ended, UNAVAILABLE when its socket cannot be reached.
  static Result<std::unique_ptr<ProcessWatch>> create(const std::string& socket_name,
                                                      pid_t process_id, int epoll_fd);

  // Once true, always true.
  bool gone();
  void send(const ClosedNotice& notice);

 private:
  ProcessWatch(UniqueFd pidfd, UniqueFd socket)
      : pidfd_(std::move(pidfd)), socket_(std::move(socket)) {}
  UniqueFd pidfd_;
  UniqueFd socket_;
  bool gone_ = false;
};

// Adds a descriptor to be woken by; it leaves the set when it is closed.
Status add_to_epoll(int epoll_fd, int fd);

}  // namespace crossdock
