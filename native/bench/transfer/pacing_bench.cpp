// Four senders into one target, each a process, beside one of them alone: what they move together,
// and how evenly. Over shared memory every sender copies by itself, over TCP the target's one
// thread takes everything.
//
// The two take turns, since the machine's speed drifts; the figures are medians over the turns.
//
// Prints JSON lines. Usage: bench_handoff_pacing [SECONDS_PER_CASE]
#include <poll.h>

#include <new>
#include <numeric>

#include "crossdock/transfer/transfer_thread.h"
#include "two_processes.h"

namespace crossdock {
namespace {

constexpr uint32_t kSendersMax = 4;
constexpr uint64_t kShareBytes = 64 * kMiB;  // of the target's segment, for each sender
constexpr uint64_t kWriteBytes = 16 * kMiB;
// One is being written while the next is posted.
constexpr uint64_t kWritesAhead = 2;
constexpr int kTurns = 5;
constexpr int kPollMs = 10;  // between looks at whether to start or stop

struct Course {
  Board boards[kSendersMax];  // one a pair
  std::atomic<uint32_t> num_ready;
  std::atomic<bool> started;
  std::atomic<bool> stopped;
  std::atomic<uint64_t> bytes[kSendersMax];  // written since the start
};

TransportConfig config_of(const std::string& transport, uint64_t segment_bytes) {
  TransportConfig config;
  config.transport = transport;
  config.segment_bytes = segment_bytes;
  config.bind_interface = "lo";
  return config;
}

void run_target(Course& course, const std::string& transport, uint32_t num_senders) {
  TransferThread thread(
      must(create_ucx_transport(config_of(transport, kSendersMax * kShareBytes), 1)));
  for (uint32_t i = 0; i < num_senders; ++i) {
    course.boards[i].put(Board::kTarget, encode(thread.descriptor()));
    thread.submit(Connect{i + 1, kIncarnation + i,
                          must(decode_endpoint(course.boards[i].take(Board::kInitiator)))});
  }
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));  // until it is killed
}

class Sender {
 public:
  Sender(Course& course, const std::string& transport, uint32_t index)
      : course_(course),
        index_(index),
        thread_(must(create_ucx_transport(config_of(transport, kShareBytes), 2 + index))) {
    Board& board = course.boards[index];
    board.put(Board::kInitiator, encode(thread_.descriptor()));
    thread_.submit(
        Connect{kPeer, kIncarnation + index, must(decode_endpoint(board.take(Board::kTarget)))});
  }

  void run() {
    while (!course_.stopped.load()) {
      pollfd fd{.fd = thread_.event_fd(), .events = POLLIN};
      ::poll(&fd, 1, kPollMs);
      events_.clear();
      thread_.drain(events_);
      for (const TransferEvent& event : events_) on(event);
      if (!course_.started.load()) continue;
      while (ready_ && num_ahead_ < kWritesAhead) write();
    }
  }

 private:
  void on(const TransferEvent& event) {
    if (std::holds_alternative<PeerBroken>(event)) fail("a pair broke");
    if (std::holds_alternative<PeerReady>(event)) {
      ready_ = true;
      course_.num_ready.fetch_add(1);
    }
    const auto* done = std::get_if<OperationDone>(&event);
    if (done == nullptr) return;
    must(done->status);
    if (done->bytes > 0) return;
    --num_ahead_;  // the fence behind a write: it has arrived
    course_.bytes[index_].fetch_add(kWriteBytes);
  }
  void write() {
    const uint64_t at = num_written_++ % (kShareBytes / kWriteBytes) * kWriteBytes;
    thread_.submit(WriteSpans{1, kPeer, {{at, index_ * kShareBytes + at, kWriteBytes}}});
    thread_.submit(Fence{2, kPeer});
    ++num_ahead_;
  }

  Course& course_;
  const uint32_t index_;
  TransferThread thread_;
  std::vector<TransferEvent> events_;
  bool ready_ = false;
  uint64_t num_ahead_ = 0;
  uint64_t num_written_ = 0;
};

// Bytes per second of each sender.
std::vector<double> run(const std::string& transport, uint32_t num_senders, double seconds) {
  const MappedMemory memory = must(MappedMemory::create("bench-pacing", sizeof(Course)));
  auto& course = *new (memory.data()) Course{};
  std::vector<pid_t> children;
  for (uint32_t i = 0; i <= num_senders; ++i) {
    children.push_back(::fork());
    if (children.back() < 0) fail("fork");
    if (children.back() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (transport == "tcp") take_half_of_processors(i == num_senders ? 0 : 1);
    if (i == num_senders) run_target(course, transport, num_senders);
    Sender(course, transport, i).run();
    std::_Exit(0);
  }
  const auto deadline = SteadyClock::now() + kWaitMax;
  while (course.num_ready.load() < num_senders) {
    if (SteadyClock::now() > deadline) fail("the senders do not get ready");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  course.started.store(true);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 4));  // to get going
  std::vector<uint64_t> before(num_senders);
  for (uint32_t i = 0; i < num_senders; ++i) before[i] = course.bytes[i].load();
  const auto begin = SteadyClock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double elapsed = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  std::vector<double> rates(num_senders);
  for (uint32_t i = 0; i < num_senders; ++i) {
    rates[i] = static_cast<double>(course.bytes[i].load() - before[i]) / elapsed;
  }
  course.stopped.store(true);
  for (uint32_t i = 0; i < num_senders; ++i) {
    int status = 0;
    ::waitpid(children[i], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("a sender failed");
  }
  ::kill(children.back(), SIGKILL);
  ::waitpid(children.back(), nullptr, 0);
  return rates;
}

// Jain's index of fairness (R. Jain et al., DEC-TR-301, 1984): 1 when all are equal, 1/n when one
// has everything.
double jain(const std::vector<double>& rates) {
  const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
  const double squares = std::inner_product(rates.begin(), rates.end(), rates.begin(), 0.0);
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(rates.size()) * squares);
}

void measure(const std::string& transport, double seconds) {
  Samples alone, together, share, slowest, fastest, spread, fairness;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double one = run(transport, 1, seconds / kTurns).front() / 1e9;
    alone.add(one);
    const std::vector<double> rates = run(transport, kSendersMax, seconds / kTurns);
    const double all = std::accumulate(rates.begin(), rates.end(), 0.0) / 1e9;
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    together.add(all);
    share.add(all / one);
    slowest.add(*least / 1e9);
    fastest.add(*most / 1e9);
    spread.add(*least / *most);
    fairness.add(jain(rates));
  }
  Line{transport + ", four senders into one",
       together.quantile(0.5),
       "GB/s",
       alone.quantile(0.5),
       share.quantile(0.5),
       "one sender alone",
       0.95}
      .print();
  Line{transport + ", slowest of four",
       slowest.quantile(0.5),
       "GB/s",
       fastest.quantile(0.5),
       spread.quantile(0.5),
       "the fastest",
       0.5}
      .print();
  Line{
      .name = transport + ", Jain's index of four", .value = fairness.quantile(0.5), .unit = "of 1"}
      .print();
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5.0;
  for (const char* transport : {"shm", "tcp"}) crossdock::measure(transport, seconds);
}
