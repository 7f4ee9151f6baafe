#include "crossdock/sys/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "crossdock/sys/cpu.h"

namespace crossdock {
namespace {

TEST(ThreadPool, CoversEveryUnitOnce) {
  for (const uint32_t threads : {1u, 2u, 4u}) {
    ThreadPool pool(threads);
    for (const size_t units : {0, 1, 2, 7, 100, 1001}) {
      for (const size_t grain : {1, 3, 64}) {
        std::vector<int> visits(units, 0);
        pool.parallel_for(units, grain, [&](size_t begin, size_t end, uint32_t thread) {
          EXPECT_LT(thread, threads);
          for (size_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_EQ(visits, std::vector<int>(units, 1));
      }
    }
  }
}

// Plain memory written in one job is read in the next by whichever thread: TSan's business, and
// wrong sums without it.
TEST(ThreadPool, JobsAreOrderedThroughPlainMemory) {
  ThreadPool pool(3);
  std::vector<uint64_t> values(64, 1), next(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(values.size(), 1, [&](size_t begin, size_t end, uint32_t) {
      for (size_t i = begin; i < end; ++i) next[i] = values[(i + 1) % values.size()] + 1;
    });
    values.swap(next);
    // Now and then long enough for the workers to fall asleep.
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(values, std::vector<uint64_t>(64, 2001));
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(2);
  std::atomic<bool> helped = false;
  // The caller holds its unit until the worker has taken the other one.
  pool.parallel_for(2, 1, [&](size_t, size_t, uint32_t thread) {
    if (thread == 1) helped = true;
    while (thread == 0 && !helped) std::this_thread::yield();
  });
  EXPECT_TRUE(helped);
}

TEST(ThreadPool, WorkersStayOnTheirProcessorsWhereThereAreAsManyAsThreads) {
  const auto num_cpus = static_cast<uint32_t>(allowed_cpus().size());
  ASSERT_GE(num_cpus, 1u);
  const auto places = [&](uint32_t num_threads, bool pin_workers) {
    ThreadPool pool(num_threads, pin_workers);
    std::vector<size_t> counts(num_threads);
    std::atomic<uint32_t> num_here = 0;
    // Everyone waits for the others, so each thread takes one unit.
    pool.parallel_for(num_threads, 1, [&](size_t, size_t, uint32_t thread) {
      counts[thread] = allowed_cpus().size();
      ++num_here;
      while (num_here < num_threads) std::this_thread::yield();
    });
    return counts;
  };
  std::vector<size_t> pinned(num_cpus, 1);
  pinned[0] = num_cpus;  // the caller goes where it likes
  EXPECT_EQ(places(num_cpus, true), pinned);
  EXPECT_EQ(places(num_cpus, false), std::vector<size_t>(num_cpus, num_cpus));
  EXPECT_EQ(places(num_cpus + 1, true), std::vector<size_t>(num_cpus + 1, num_cpus));
}

TEST(ThreadPool, SleepsWhenIdle) {
  ThreadPool pool(2);
  pool.parallel_for(8, 1, [](size_t, size_t, uint32_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto cpu_us = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  const auto before = cpu_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_us() - before, 100'000);  // a spinning worker would take 200,000
}

}  // namespace
}  // namespace crossdock
