#include "fiber.h"

#include <cassert>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace crossdock::sim {
namespace {

// Frames under AddressSanitizer are several times larger. It clears a stack's shadow, an eighth of
// its size, at every switch, and from 64 KiB on by mapping it anew: then 200 worlds took 32 s of
// CPU time instead of 19.
constexpr size_t kStackBytes = 448 << 10;
thread_local Fiber* running = nullptr;

#if defined(__SANITIZE_ADDRESS__)
void start_switch(void** fake_stack, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void finish_switch(void* fake_stack, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
#else
void start_switch(void**, const void*, size_t) {}
void finish_switch(void*, const void**, size_t*) {}
#endif

}  // namespace

Fiber* Fiber::current() { return running; }

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.get();
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
}

Fiber::~Fiber() { cancel(); }

void Fiber::enter() {
  Fiber& self = *running;
  finish_switch(nullptr, &self.caller_stack_, &self.caller_stack_bytes_);
  try {
    self.body_();
  } catch (const Cancelled&) {
  }
  self.ended_ = true;
  self.leave(nullptr);
}

void Fiber::resume() {
  assert(!ended_);
  Fiber* outer = std::exchange(running, this);
  assert(outer == nullptr && "a fiber is resumed by the world alone");
  begun_ = true;
  void* fake_stack = nullptr;
  start_switch(&fake_stack, stack_.get(), kStackBytes);
  swapcontext(&caller_, &context_);
  finish_switch(fake_stack, nullptr, nullptr);
  running = outer;
}

void Fiber::leave(void** fake_stack) {
  // Without a place for it the fake stack is given up: this stack is never entered again.
  start_switch(fake_stack, caller_stack_, caller_stack_bytes_);
  swapcontext(&context_, &caller_);
}

void Fiber::yield() {
  assert(running == this);
  void* fake_stack = nullptr;
  leave(&fake_stack);
  finish_switch(fake_stack, &caller_stack_, &caller_stack_bytes_);
  if (cancelled_) throw Cancelled{};
}

void Fiber::cancel() {
  if (ended_) return;
  cancelled_ = true;
  if (begun_) resume();
  ended_ = true;
}

void Fiber::escape() {
  assert(running == this);
  ended_ = true;
  start_switch(nullptr, caller_stack_, caller_stack_bytes_);
  setcontext(&caller_);
  __builtin_unreachable();
}

}  // namespace crossdock::sim
