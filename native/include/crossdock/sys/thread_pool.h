// A fork-join pool for the model's loops: one job at a time, its units handed out by a counter, the
// calling thread taking part.
//
// Workers spin for a few microseconds after a job, because within a step the next one follows at
// once, and then sleep in the kernel: an idle pool uses no processor. A worker that wakes too late
// finds the job closed and is not waited for.
//
// Where the process may use exactly as many processors as the pool has threads, each worker stays
// on one of them, so that its share of the caches does; the caller is left to the system, since
// what it starts later would inherit its place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace crossdock {

class ThreadPool {
 public:
  // The calling thread is one of num_threads, so num_threads - 1 are started.
  explicit ThreadPool(uint32_t num_threads, bool pin_workers = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t num_threads() const { return num_threads_; }

  // Calls body(begin, end, thread_index) until [0, num_units) is covered, in pieces of at most
  // `grain` units; returns when every piece is done. Pieces may run in any order and on any thread,
  // so the body must not depend on it. thread_index is below num_threads(). Only one thread may
  // call this at a time, and never from inside a body.
  template <typename Body>
  void parallel_for(size_t num_units, size_t grain, const Body& body) {
    run({[](const void* context, size_t begin, size_t end, uint32_t thread) {
           (*static_cast<const Body*>(context))(begin, end, thread);
         },
         &body, num_units, grain});
  }

 private:
  struct Job {
    void (*call)(const void* context, size_t begin, size_t end, uint32_t thread) = nullptr;
    const void* context = nullptr;
    size_t num_units = 0;
    size_t grain = 1;
  };

  void run(const Job& job);
  void take_units(uint32_t thread);
  void work(uint32_t thread);
  uint32_t await_job(uint32_t seen);

  const uint32_t num_threads_;
  Job job_;  // written only while the gate is closed and no worker is inside
  alignas(64) std::atomic<size_t> next_unit_{0};
  // Bit 31: the job is open. The rest: workers inside it. Whoever enters does so by one
  // compare-exchange, so nobody enters a closed job and the caller sees everyone who did.
  alignas(64) std::atomic<uint32_t> gate_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts jobs; what sleepers wait on
  std::atomic<uint32_t> num_sleeping_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace crossdock
