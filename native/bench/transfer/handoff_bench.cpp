// Two processes: the first byte posted to the fence that proves arrival, through Transport, beside
// the limit measured in the same run. For shared memory the limit is memcpy into the same mapping;
// for TCP it is UCX's own put and flush, with our segment sizes or with UCX's defaults, whichever
// is faster. Ours and the limit take turns, so that both see the same machine.
//
// Prints JSON lines. Usage: bench_handoff [SECONDS_PER_CASE]
#include <poll.h>
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
#include <thread>

#include "../../src/transfer/ucx_address.h"
#include "../../src/transfer/ucx_worker.h"
#include "crossdock/sys/shared_memory.h"
#include "crossdock/transfer/transfer_thread.h"

namespace crossdock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kSizes[] = {1 * kMiB, 16 * kMiB, 256 * kMiB};
constexpr uint64_t kSizeMax = 256 * kMiB;
constexpr PeerId kPeer = 1;
constexpr uint64_t kIncarnation = 4711;
constexpr auto kWaitMax = std::chrono::seconds(60);
constexpr int kRounds = 5;
constexpr size_t kBlobBytesMax = 8192;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench_handoff: %s\n", what.c_str());
  std::_Exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.status().to_string());
  return std::move(result).value();
}

void must(const Status& status) {
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
    const auto deadline = Clock::now() + kWaitMax;
    while (blobs[slot].bytes.load() == 0) {
      if (Clock::now() > deadline) fail("the other process does not answer");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {blobs[slot].data, blobs[slot].data + blobs[slot].bytes.load()};
  }
};

TransportConfig config_for(const std::string& transport) {
  TransportConfig config;
  config.transport = transport;
  config.segment_bytes = 2 * kSizeMax;
  config.bind_interface = "lo";
  return config;
}

UcxOptions raw_options(bool tuned) {
  UcxOptions options = {{"TLS", "tcp,self"}, {"NET_DEVICES", "lo"}};
  if (tuned) {
    options.emplace_back("TCP_TX_SEG_SIZE", "256k");
    options.emplace_back("TCP_RX_SEG_SIZE", "256k");
  }
  return options;
}

// ---- the target ------------------------------------------------------------------------------

struct RawTarget {
  std::unique_ptr<UcxWorker> worker;
  std::unique_ptr<UcxMemory> memory;

  RawTarget(Board& board, bool tuned)
      : worker(must(UcxWorker::create(UCP_FEATURE_RMA, raw_options(tuned)))),
        memory(must(UcxMemory::allocate(*worker, kSizeMax, false))) {
    (tuned ? board.raw_base : board.plain_base).store(reinterpret_cast<uint64_t>(memory->data()));
    board.put(tuned ? Board::kRawAddress : Board::kPlainAddress, must(worker->address()));
    board.put(tuned ? Board::kRawKey : Board::kPlainKey, must(memory->remote_key()));
  }
};

void run_target(Board& board, const std::string& transport) {
  TransferThread thread(must(create_ucx_transport(config_for(transport), 2)));
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

// ---- the initiator ---------------------------------------------------------------------------

class Ours {
 public:
  Ours(Board& board, const std::string& transport)
      : transport_(must(create_ucx_transport(config_for(transport), 1))) {
    board.put(Board::kInitiator, encode(transport_->descriptor()));
    target_ = must(decode_endpoint(board.take(Board::kTarget)));
    must(transport_->post(Connect{kPeer, kIncarnation, target_}));
    wait([](const TransferEvent& event) { return std::holds_alternative<PeerReady>(event); });
  }

  const EndpointDescriptor& target() const { return target_; }
  std::span<std::byte> segment() { return transport_->segment(); }

  void write(uint64_t bytes) {
    must(transport_->post(WriteSpans{1, kPeer, {{0, 0, bytes}}}));
    must(transport_->post(Fence{2, kPeer}));
    wait_done(2);
  }
  void read_back(uint64_t bytes) {
    must(transport_->post(ReadSpans{3, kPeer, {{kSizeMax, 0, bytes}}}));
    wait_done(3);
  }

 private:
  void wait_done(OperationId operation) {
    wait([&](const TransferEvent& event) {
      if (std::holds_alternative<PeerBroken>(event)) fail("the peer broke");
      const auto* done = std::get_if<OperationDone>(&event);
      if (done == nullptr || done->operation != operation) return false;
      must(done->status);
      return true;
    });
  }
  void wait(const std::function<bool(const TransferEvent&)>& wanted) {
    const auto deadline = Clock::now() + kWaitMax;
    for (;;) {
      events_.clear();
      transport_->poll(events_);
      if (std::any_of(events_.begin(), events_.end(), wanted)) return;
      if (Clock::now() > deadline) fail("no answer in time");
    }
  }

  std::unique_ptr<Transport> transport_;
  EndpointDescriptor target_;
  std::vector<TransferEvent> events_;
};

// UCX by itself: an endpoint without error handling, a put, a flush.
class RawInitiator {
 public:
  RawInitiator(UcxOptions options, std::span<const std::byte> address,
               std::span<const std::byte> key, uint64_t base)
      : worker_(must(UcxWorker::create(UCP_FEATURE_RMA, options))), base_(base) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    must(status_of(ucp_ep_create(worker_->worker(), &params, &endpoint_), "endpoint"));
    must(status_of(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "key"));
  }
  void write(const std::byte* source, uint64_t bytes) {
    ucp_request_param_t param{};
    wait(ucp_put_nbx(endpoint_, source, bytes, base_, key_, &param));
    wait(ucp_ep_flush_nbx(endpoint_, &param));
  }
  std::byte* mapping() {
    void* mapped = nullptr;
    must(status_of(ucp_rkey_ptr(key_, base_, &mapped), "mapping the target's segment"));
    return static_cast<std::byte*>(mapped);
  }

 private:
  void wait(void* request) {
    if (!UCS_PTR_IS_PTR(request)) return must(status_of(UCS_PTR_STATUS(request), "raw UCX"));
    ucs_status_t status = UCS_INPROGRESS;
    const auto deadline = Clock::now() + kWaitMax;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
      worker_->progress();
      if (Clock::now() > deadline) fail("raw UCX does not answer");
    }
    ucp_request_free(request);
    must(status_of(status, "raw UCX"));
  }

  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t base_;
};

class Samples {
 public:
  void take(double seconds, const std::function<void()>& action) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    action();  // one to get going: page tables, caches, window sizes
    do {
      const auto start = Clock::now();
      action();
      seconds_.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    } while (Clock::now() < end);
  }
  double median_gbps(uint64_t bytes) {
    const auto middle = seconds_.begin() + static_cast<ptrdiff_t>(seconds_.size() / 2);
    std::nth_element(seconds_.begin(), middle, seconds_.end());
    return static_cast<double>(bytes) / *middle / 1e9;
  }

 private:
  std::vector<double> seconds_;
};

void print(const std::string& name, double value, double limit, const std::string& more) {
  std::printf(
      "{\"bench\": \"handoff\", \"case\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", "
      "\"limit\": %.3f, \"ratio\": %.3f%s}\n",
      name.c_str(), value, limit, value / limit, more.c_str());
  std::fflush(stdout);
}

std::string case_name(const std::string& transport, uint64_t bytes) {
  return transport + " " + std::to_string(bytes / kMiB) + " MiB";
}

void check_arrival(Ours& ours, uint64_t bytes, uint8_t seed) {
  const auto segment = ours.segment();
  for (uint64_t i = 0; i < bytes; ++i) segment[i] = std::byte((i * 31 + seed) & 0xff);
  ours.write(bytes);
  ours.read_back(bytes);
  if (std::memcmp(segment.data(), segment.data() + kSizeMax, bytes) != 0) {
    fail("what arrived is not what was sent");
  }
}

void run_shared_memory(Board& board, double seconds) {
  Ours ours(board, "shm");
  const UcxAddress address = must(decode_ucx_address(ours.target().worker_address));
  const UcxRemoteKeys keys = must(decode_ucx_remote_keys(ours.target().remote_key));
  RawInitiator raw({{"TLS", "posix,self"}}, address.shared_memory, keys.shared_memory,
                   ours.target().segment_address);
  std::byte* mapping = raw.mapping();
  for (const uint64_t bytes : kSizes) {
    check_arrival(ours, bytes, static_cast<uint8_t>(bytes / kMiB));
    Samples here;
    Samples limit;
    for (int round = 0; round < kRounds; ++round) {
      here.take(seconds / kRounds / 2, [&] { ours.write(bytes); });
      limit.take(seconds / kRounds / 2,
                 [&] { std::memcpy(mapping, ours.segment().data(), bytes); });
    }
    print(case_name("shm", bytes), here.median_gbps(bytes), limit.median_gbps(bytes),
          ", \"limit_of\": \"memcpy into the same mapping\"");
  }
}

void run_tcp(Board& board, double seconds) {
  Ours ours(board, "tcp");
  RawInitiator raw(raw_options(true), board.take(Board::kRawAddress), board.take(Board::kRawKey),
                   board.raw_base.load());
  RawInitiator plain(raw_options(false), board.take(Board::kPlainAddress),
                     board.take(Board::kPlainKey), board.plain_base.load());
  for (const uint64_t bytes : kSizes) {
    check_arrival(ours, bytes, static_cast<uint8_t>(bytes / kMiB));
    Samples here;
    Samples tuned;
    Samples untuned;
    for (int round = 0; round < kRounds; ++round) {
      board.phase.store(Board::kOurs);
      here.take(seconds / kRounds / 3, [&] { ours.write(bytes); });
      board.phase.store(Board::kRaw);
      tuned.take(seconds / kRounds / 3, [&] { raw.write(ours.segment().data(), bytes); });
      board.phase.store(Board::kPlain);
      untuned.take(seconds / kRounds / 3, [&] { plain.write(ours.segment().data(), bytes); });
    }
    const double with_our_sizes = tuned.median_gbps(bytes);
    const double with_defaults = untuned.median_gbps(bytes);
    char more[160];
    std::snprintf(
        more, sizeof more, ", \"limit_of\": \"raw UCX put and flush, %s\", \"raw_default\": %.3f",
        with_our_sizes > with_defaults ? "256 KiB segments" : "default segments", with_defaults);
    print(case_name("tcp", bytes), here.median_gbps(bytes), std::max(with_our_sizes, with_defaults),
          more);
  }
  board.phase.store(Board::kOurs);
}

void run(const std::string& transport, double seconds) {
  const MappedMemory memory = must(MappedMemory::create("bench-handoff", sizeof(Board)));
  auto& board = *new (memory.data()) Board{};
  // Before any UCX, which does not survive a fork.
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_target(board, transport);
    std::_Exit(0);
  }
  const pid_t initiator = ::fork();
  if (initiator < 0) fail("fork");
  if (initiator == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (transport == "shm") {
      run_shared_memory(board, seconds);
    } else {
      run_tcp(board, seconds);
    }
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(initiator, &status, 0);
  board.phase.store(Board::kEnd);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) std::exit(1);
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 4.0;
  for (const char* transport : {"shm", "tcp"}) crossdock::run(transport, seconds);
}
