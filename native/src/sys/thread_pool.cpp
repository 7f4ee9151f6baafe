#include "crossdock/sys/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <optional>

#include "crossdock/sys/cpu.h"

namespace crossdock {
namespace {

constexpr uint32_t kOpen = 1u << 31;
// About 20 us: longer than the gap between two loops of one layer, shorter than a futex wake.
constexpr int kSpins = 1000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  // A spurious or interrupted return is fine: every caller looks at the word again.
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
}

}  // namespace

ThreadPool::ThreadPool(uint32_t num_threads, bool pin_workers) : num_threads_(num_threads) {
  assert(num_threads >= 1);
  const auto cpus = allowed_cpus();
  const bool pins = pin_workers && cpus.size() == num_threads;
  for (uint32_t thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread, cpu = pins ? std::optional(cpus[thread]) : std::nullopt] {
      if (cpu) pin_to_cpu(*cpu);
      work(thread);
    });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_seq_cst);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(epoch_);
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(const Job& job) {
  assert(job.grain >= 1);
  if (num_threads_ == 1 || job.num_units <= job.grain) {
    if (job.num_units > 0) job.call(job.context, 0, job.num_units, 0);
    return;
  }
  job_ = job;
  next_unit_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  // A sleeper counts itself, then looks at the epoch; we move the epoch, then look at the count.
  // Both sequentially consistent, so one of the two sees the other.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) futex_wake_all(epoch_);
  take_units(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0; gate_.load(std::memory_order_acquire) != 0; ++spins) {
    // A worker inside may have lost its processor to another program: let it have ours.
    spins < kSpins ? pause() : std::this_thread::yield();
  }
}

void ThreadPool::take_units(uint32_t thread) {
  for (;;) {
    const size_t begin = next_unit_.fetch_add(job_.grain, std::memory_order_relaxed);
    if (begin >= job_.num_units) return;
    const size_t end = begin + job_.grain;
    job_.call(job_.context, begin, end < job_.num_units ? end : job_.num_units, thread);
  }
}

uint32_t ThreadPool::await_job(uint32_t seen) {
  for (int spins = 0; spins < kSpins; ++spins) {
    const uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (epoch != seen) return epoch;
    pause();
  }
  num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
  uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
  while (epoch == seen) {
    futex_wait(epoch_, seen);
    epoch = epoch_.load(std::memory_order_seq_cst);
  }
  num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  return epoch;
}

void ThreadPool::work(uint32_t thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = await_job(seen);
    if (stopping_.load(std::memory_order_seq_cst)) return;
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    bool inside = false;
    while ((gate & kOpen) != 0 && !inside) {
      inside = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel,
                                           std::memory_order_relaxed);
    }
    if (!inside) continue;
    take_units(thread);
    gate_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace crossdock
