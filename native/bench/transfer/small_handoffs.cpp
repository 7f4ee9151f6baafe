// The latency of a small handoff: one block of 64 KiB written, fenced and committed by a message;
// from the post of the write to the moment when the target has the message in hand. Both processes
// poll, so nobody has to be woken, and both read one clock.
#include <time.h>

#include "our_end.h"

namespace crossdock {
namespace {

constexpr uint64_t kBlockBytes = 64 << 10;
constexpr uint64_t kSegmentBytes = 4 * kMiB;
constexpr double kGoalUs = 20.0;
// A commit with one choice is about this long.
constexpr size_t kCommitBytes = 128;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Answers each commit with the time at which it was seen, until the initiator is done.
void run_target(Board& board, const std::string& transport) {
  OurEnd end(board, transport_config(transport, kSegmentBytes), Board::kTarget);
  for (;;) {
    end.wait_message();
    const uint64_t seen_ns = now_ns();
    end.notify(std::as_bytes(std::span(&seen_ns, 1)));
  }
}

void run_initiator(Board& board, const std::string& transport, double seconds) {
  OurEnd end(board, transport_config(transport, kSegmentBytes), Board::kInitiator);
  const std::vector<std::byte> commit(kCommitBytes);
  Samples samples;
  const auto finish = SteadyClock::now() + std::chrono::duration<double>(seconds);
  while (SteadyClock::now() < finish) {
    const uint64_t posted_ns = now_ns();
    end.write(kBlockBytes);
    end.notify(commit);
    const auto answer = end.wait_message();
    uint64_t seen_ns = 0;
    std::memcpy(&seen_ns, answer.data(), sizeof seen_ns);
    samples.add(static_cast<double>(seen_ns - posted_ns) * 1e-9);
  }
  const double p50 = samples.quantile(0.5) * 1e6;
  const double p99 = samples.quantile(0.99) * 1e6;
  Line median{.name = transport + ", one block of 64 KiB, p50", .value = p50, .unit = "us"};
  if (transport == "shm") {
    median.limit = kGoalUs;
    median.ratio = kGoalUs / p50;
    median.against = "goal: post to commit seen";
    median.wanted = 1.0;
  }
  median.print();
  Line{.name = transport + ", one block of 64 KiB, p99", .value = p99, .unit = "us"}.print();
  board.phase.store(Board::kEnd);
}

}  // namespace

void run_small_handoffs(const std::string& transport, double seconds) {
  run_in_two([&](Board& board) { run_target(board, transport); },
             [&](Board& board) { run_initiator(board, transport, seconds); });
}

}  // namespace crossdock
