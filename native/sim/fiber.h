// A function on a stack of its own, which gives control back and is resumed later.
//
// A body must not yield while an exception is in flight: the runtime keeps those by thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace crossdock::sim {

class Fiber {
 public:
  // Thrown out of yield() into a body that is to end. A body lets it pass.
  struct Cancelled {};

  explicit Fiber(std::function<void()> body);
  ~Fiber();  // cancels it first
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it yields or returns.
  void resume();
  // Unwinds a body that has begun and is suspended. Afterwards it has ended.
  void cancel();
  bool ended() const { return ended_; }

  // ---- within the body ----
  void yield();
  // Leaves the stack as it is, never to be resumed: for a body that has failed an assertion.
  [[noreturn]] void escape();
  // The fiber whose body runs now, or null.
  static Fiber* current();

 private:
  static void enter();
  void leave(void** fake_stack);

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t caller_{};
  ucontext_t context_{};
  bool begun_ = false;
  bool ended_ = false;
  bool cancelled_ = false;
  // Where AddressSanitizer is told of a change of stacks.
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace crossdock::sim
