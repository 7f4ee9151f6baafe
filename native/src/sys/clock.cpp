#include "crossdock/sys/clock.h"

#include <sys/epoll.h>
#include <time.h>

#include <cassert>

#include "crossdock/sys/unique_fd.h"

namespace crossdock {
namespace {

class SystemClock final : public Clock {
 public:
  explicit SystemClock(UniqueFd epoll) : epoll_(std::move(epoll)) {}

  uint64_t now_ns() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }

  void watch(int fd) override {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    [[maybe_unused]] const int added = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    assert(added == 0);
  }

  void wait(int timeout_ms) override {
    epoll_event event;
    epoll_wait(epoll_.get(), &event, 1, timeout_ms);
  }

 private:
  UniqueFd epoll_;
};

}  // namespace

Result<std::unique_ptr<Clock>> create_system_clock() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Status(StatusCode::kInternal, "epoll_create1 failed");
  return std::unique_ptr<Clock>(std::make_unique<SystemClock>(std::move(epoll)));
}

}  // namespace crossdock
