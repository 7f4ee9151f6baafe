// Time as a loop knows it, and sleeping in it. It is an argument of the engine's loop, so that a
// simulation can bring a time of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "crossdock/sys/status.h"

namespace crossdock {

// Used by one thread.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, since some moment before the process began.
  virtual uint64_t now_ns() const = 0;
  // From now on wait() ends while `fd` is readable. The caller keeps it open.
  virtual void watch(int fd) = 0;
  // Sleeps until a watched descriptor is readable or the time has passed; -1: without a bound.
  virtual void wait(int timeout_ms) = 0;
};

// The machine's own.
Result<std::unique_ptr<Clock>> create_system_clock();

}  // namespace crossdock
