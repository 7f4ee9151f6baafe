// What every benchmark of the transfer needs: two processes that find each other without the means
// that are being measured, errors that end the program, and medians.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "crossdock/sys/shared_memory.h"
#include "crossdock/transfer/transfer.h"

namespace crossdock {

using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kSizeMax = 256 * kMiB;
constexpr PeerId kPeer = 1;
constexpr uint64_t kIncarnation = 4711;
constexpr auto kWaitMax = std::chrono::seconds(60);
constexpr size_t kBlobBytesMax = 8192;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "bench_handoff: %s\n", what.c_str());
  std::_Exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.status().to_string());
  return std::move(result).value();
}

inline void must(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}

// What the two processes tell each other outside of what is measured.
struct Board {
  struct Blob {
    std::atomic<uint32_t> bytes;
    std::byte data[kBlobBytesMax];
  };
  enum Slot { kInitiator, kTarget, kRawAddress, kRawKey, kPlainAddress, kPlainKey, kNumSlots };
  enum Phase : int { kOurs = 0, kRaw = 1, kPlain = 2, kEnd = 3 };

  Blob blobs[kNumSlots];
  std::atomic<uint64_t> raw_base;
  std::atomic<uint64_t> plain_base;
  std::atomic<int> phase;

  void put(Slot slot, std::span<const std::byte> bytes) {
    if (bytes.size() > kBlobBytesMax) fail("a descriptor is too large for the board");
    std::memcpy(blobs[slot].data, bytes.data(), bytes.size());
    blobs[slot].bytes.store(static_cast<uint32_t>(bytes.size()));
  }
  std::vector<std::byte> take(Slot slot) {
    const auto deadline = SteadyClock::now() + kWaitMax;
    while (blobs[slot].bytes.load() == 0) {
      if (SteadyClock::now() > deadline) fail("the other process does not answer");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {blobs[slot].data, blobs[slot].data + blobs[slot].bytes.load()};
  }
};

// Half of the processors for each of two processes, as two machines have. Left to itself the kernel
// now and then wakes the receiver of a socket where its sender runs and leaves both there, which
// halves a transfer over TCP for as long as it takes.
inline void take_half_of_processors(int which) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
  cpu_set_t half;
  CPU_ZERO(&half);
  const int middle = CPU_COUNT(&all) / 2;
  for (int processor = 0, index = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &all)) continue;
    if ((index++ < middle) == (which == 0)) CPU_SET(processor, &half);
  }
  ::sched_setaffinity(0, sizeof half, &half);
}

// Runs both in processes of their own, which is what UCX needs; it does not survive a fork. Ends
// with the initiator. `apart`: on processors of their own, which matters where both are busy.
inline void run_in_two(const std::function<void(Board&)>& target,
                       const std::function<void(Board&)>& initiator, bool apart = true) {
  const MappedMemory memory = must(MappedMemory::create("bench-handoff", sizeof(Board)));
  auto& board = *new (memory.data()) Board{};
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = ::fork();
    if (children[i] < 0) fail("fork");
    if (children[i] != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (apart) take_half_of_processors(i);
    (i == 0 ? target : initiator)(board);
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(children[1], &status, 0);
  board.phase.store(Board::kEnd);
  ::kill(children[0], SIGKILL);
  ::waitpid(children[0], nullptr, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) std::exit(1);
}

// Durations of one action.
class Samples {
 public:
  void take(double seconds, const std::function<void()>& action) {
    const auto end = SteadyClock::now() + std::chrono::duration<double>(seconds);
    action();  // one to get going: page tables, caches, window sizes
    do {
      const auto start = SteadyClock::now();
      action();
      add(std::chrono::duration<double>(SteadyClock::now() - start).count());
    } while (SteadyClock::now() < end);
  }
  void add(double seconds) { seconds_.push_back(seconds); }
  size_t size() const { return seconds_.size(); }
  // The value that this share of all lies below, in seconds.
  double quantile(double share) {
    const auto index = static_cast<ptrdiff_t>(share * static_cast<double>(seconds_.size() - 1));
    std::nth_element(seconds_.begin(), seconds_.begin() + index, seconds_.end());
    return seconds_[static_cast<size_t>(index)];
  }
  double median_gbps(uint64_t bytes) { return static_cast<double>(bytes) / quantile(0.5) / 1e9; }

 private:
  std::vector<double> seconds_;
};

// One figure as a JSON line; without a limit it stands for itself.
struct Line {
  std::string name;
  double value = 0;
  const char* unit = "GB/s";
  double limit = 0;
  double ratio = 0;
  const char* against = "";
  double wanted = 0;

  void print() const {
    std::printf(R"({"bench": "handoff", "case": "%s", "value": %.3f, "unit": "%s")", name.c_str(),
                value, unit);
    if (limit > 0) std::printf(R"(, "limit": %.3f, "ratio": %.3f)", limit, ratio);
    if (*against != 0) std::printf(R"(, "against": "%s")", against);
    if (wanted > 0) std::printf(R"(, "wanted": %.2f)", wanted);
    std::printf("}\n");
    std::fflush(stdout);
  }
};

}  // namespace crossdock
