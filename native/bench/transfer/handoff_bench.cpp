// Two processes: from the first byte posted to the fence that proves arrival, through Transport,
// beside what else could move the bytes, in the same run: memcpy into the same mapping, and UCX's
// own put and flush (over TCP with our segment sizes or with UCX's defaults, whichever is faster).
// All take turns, so that all see the same machine. Then the latency of a handoff of one block.
//
// Prints JSON lines. Usage: bench_handoff [SECONDS_PER_CASE]
#include "crossdock/transfer/transfer_thread.h"
#include "our_end.h"
#include "raw_ucx.h"

namespace crossdock {

void run_small_handoffs(const std::string& transport, double seconds);  // small_handoffs.cpp

namespace {

constexpr uint64_t kSizes[] = {1 * kMiB, 16 * kMiB, 256 * kMiB};
constexpr int kRounds = 5;

void run_target(Board& board, const std::string& transport) {
  TransferThread thread(must(create_ucx_transport(transport_config(transport, 2 * kSizeMax), 2)));
  std::unique_ptr<RawTarget> raw;
  std::unique_ptr<RawTarget> plain;
  if (transport == "tcp") {
    raw = std::make_unique<RawTarget>(board, true);
    plain = std::make_unique<RawTarget>(board, false);
  }
  board.put(Board::kTarget, encode(thread.descriptor()));
  thread.submit(Connect{kPeer, kIncarnation, must(decode_endpoint(board.take(Board::kInitiator)))});
  for (;;) {
    const int phase = board.phase.load();
    if (phase == Board::kEnd) return;
    if (phase == Board::kRaw && raw) {
      raw->worker->progress();
    } else if (phase == Board::kPlain && plain) {
      plain->worker->progress();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

std::string row(const char* system, const char* memory, uint64_t bytes) {
  return std::string(system) + ", " + memory + ", " + std::to_string(bytes / kMiB) + " MiB";
}

void check_arrival(OurEnd& ours, uint64_t bytes, uint8_t seed) {
  const auto segment = ours.segment();
  for (uint64_t i = 0; i < bytes; ++i) segment[i] = std::byte((i * 31 + seed) & 0xff);
  ours.write(bytes);
  ours.read_back(bytes);
  if (std::memcmp(segment.data(), segment.data() + kSizeMax, bytes) != 0) {
    fail("what arrived is not what was sent");
  }
}

void run_shared_memory(Board& board, double seconds) {
  OurEnd ours(board, transport_config("shm", 2 * kSizeMax), Board::kInitiator);
  const UcxAddress address = must(decode_ucx_address(ours.remote().worker_address));
  const UcxRemoteKeys keys = must(decode_ucx_remote_keys(ours.remote().remote_key));
  // Our end's own directory is gone once its segment is made.
  ::setenv("UCX_POSIX_DIR", "/dev/shm", 1);
  RawInitiator raw({{"TLS", "posix,self"}}, address.shared_memory, keys.shared_memory,
                   ours.remote().segment_address);
  std::byte* mapping = raw.mapping();
  const std::byte* source = ours.segment().data();
  for (const uint64_t bytes : kSizes) {
    check_arrival(ours, bytes, static_cast<uint8_t>(bytes / kMiB));
    Samples here;
    Samples put;
    Samples copy;
    for (int round = 0; round < kRounds; ++round) {
      const double share = seconds / kRounds / 3;
      here.take(share, [&] { ours.write(bytes); });
      put.take(share, [&] { raw.write(source, bytes); });
      copy.take(share, [&] { std::memcpy(mapping, source, bytes); });
    }
    const double value = here.median_gbps(bytes);
    const double limit = copy.median_gbps(bytes);
    Line{row("crossdock", "shm, segment of UCX", bytes),
         value,
         "GB/s",
         limit,
         value / limit,
         "memcpy there",
         0.95}
        .print();
    Line{.name = row("raw UCX", "posix, memory of UCX", bytes), .value = put.median_gbps(bytes)}
        .print();
    Line{.name = row("memcpy", "the same mapping", bytes), .value = limit}.print();
  }
}

void run_tcp(Board& board, double seconds) {
  OurEnd ours(board, transport_config("tcp", 2 * kSizeMax), Board::kInitiator);
  RawInitiator raw(raw_tcp_options(true), board.take(Board::kRawAddress),
                   board.take(Board::kRawKey), board.raw_base.load());
  RawInitiator plain(raw_tcp_options(false), board.take(Board::kPlainAddress),
                     board.take(Board::kPlainKey), board.plain_base.load());
  for (const uint64_t bytes : kSizes) {
    check_arrival(ours, bytes, static_cast<uint8_t>(bytes / kMiB));
    Samples here;
    Samples tuned;
    Samples untuned;
    for (int round = 0; round < kRounds; ++round) {
      const double share = seconds / kRounds / 3;
      board.phase.store(Board::kOurs);
      here.take(share, [&] { ours.write(bytes); });
      board.phase.store(Board::kRaw);
      tuned.take(share, [&] { raw.write(ours.segment().data(), bytes); });
      board.phase.store(Board::kPlain);
      untuned.take(share, [&] { plain.write(ours.segment().data(), bytes); });
    }
    const double value = here.median_gbps(bytes);
    const double best = std::max(tuned.median_gbps(bytes), untuned.median_gbps(bytes));
    Line{row("crossdock", "tcp, segment of UCX", bytes),
         value,
         "GB/s",
         best,
         value / best,
         "raw UCX tcp, its better sizes",
         0.97}
        .print();
    Line{.name = row("raw UCX", "tcp, segments of 256 KiB", bytes),
         .value = tuned.median_gbps(bytes)}
        .print();
    Line{.name = row("raw UCX", "tcp, default segments", bytes),
         .value = untuned.median_gbps(bytes)}
        .print();
  }
  board.phase.store(Board::kOurs);
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  using namespace crossdock;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 4.0;
  run_in_two([](Board& board) { run_target(board, "shm"); },
             [&](Board& board) { run_shared_memory(board, seconds); });
  run_in_two([](Board& board) { run_target(board, "tcp"); },
             [&](Board& board) { run_tcp(board, seconds); });
  for (const char* transport : {"shm", "tcp"}) run_small_handoffs(transport, seconds);
}
