// How much of a transfer a first token waits for, where computing the prompt takes as long as the
// transfer: two engines, each a process, with an executor that only lets time pass, layer by layer.
// Then the one-sided operations of a handoff, beside their bound.
//
// Prints JSON lines. Usage: bench_handoff_overlap [PAIRS_PER_CASE]
#include <poll.h>

#include "../transfer/two_processes.h"
#include "crossdock/engine/engine.h"
#include "crossdock/transfer/transfer_thread.h"

namespace crossdock {
namespace {

constexpr uint32_t kPromptTokens = 2048;
// A prompt's and a few more, so that every round is in memory that earlier ones have touched.
constexpr uint32_t kPoolBlocks = 80;
constexpr uint32_t kVocabSize = 1 << 16;
// 8 MiB a block, 256 KiB a layer of it: the prompt has 512 MiB.
constexpr KvLayout kLayout{
    .num_layers = 32, .num_kv_heads = 16, .head_dim = 128, .dtype = DType::kBf16};
// A sleep costs some 50 us of a processor beside what it sleeps, and a prompt in many chunks has a
// thousand layers, so not every layer sleeps.
constexpr uint32_t kSleepsPerPrompt = 64;

class IdleExecutor : public Executor {
 public:
  explicit IdleExecutor(std::atomic<uint64_t>& prompt_ns) : prompt_ns_(prompt_ns) {
    model_.num_layers = kLayout.num_layers;
    model_.vocab_size = kVocabSize;
    model_.context_tokens_max = 2 * kPromptTokens;
  }
  const ModelConfig& model() const override { return model_; }
  const KvLayout& layout() const override { return kLayout; }
  std::string numerics_id() const override { return "none"; }
  void bind_slab(std::byte*, uint32_t) override {}
  void zero_tail(BlockId, uint32_t) override {}
  std::span<const float> run(std::span<const BatchItem> batch,
                             const LayerCallback& on_layer) override {
    uint64_t num_tokens = 0;
    size_t num_rows = 0;
    for (const BatchItem& item : batch) {
      num_tokens += item.tokens.size();
      num_rows += item.wants_logits;
    }
    const uint64_t prompt_ns = prompt_ns_.load();
    const uint64_t step_ns = prompt_ns * num_tokens / kPromptTokens;
    const auto begin = SteadyClock::now();
    uint64_t slept_ns = 0;
    for (uint32_t layer = 0; layer < kLayout.num_layers; ++layer) {
      const uint64_t done_ns = step_ns * (layer + 1) / kLayout.num_layers;
      const bool last = layer + 1 == kLayout.num_layers;
      if (last || done_ns - slept_ns >= prompt_ns / kSleepsPerPrompt) {
        std::this_thread::sleep_until(begin + std::chrono::nanoseconds(done_ns));
        slept_ns = done_ns;
      }
      on_layer(layer);
    }
    logits_.resize(num_rows * model_.vocab_size);
    return logits_;
  }

 private:
  std::atomic<uint64_t>& prompt_ns_;  // what computing the prompt takes
  ModelConfig model_;
  std::vector<float> logits_;
};

// An engine on a thread, and the front's end of its link.
class Host {
 public:
  Host(const std::string& transport, uint64_t epoch, uint32_t token_budget)
      : front_(must(FrontLink::create(1 << 20))),
        link_(must(
            EngineLink::attach(front_.memory_fd(), front_.to_engine_fd(), front_.to_front_fd()))),
        epoch_(epoch) {
    const EngineConfig config{.instance_id = "bench",
                              .token_budget = token_budget,
                              .step_ms_max = 0,
                              .num_sequences_max = 8};
    const TransportConfig wanted{
        .transport = transport,
        .segment_bytes = kPoolBlocks * kLayout.stride_bytes() + Staging::bytes(kLayout),
        .bind_interface = "lo"};
    engine_ = std::make_unique<Engine>(
        config, link_, std::make_unique<IdleExecutor>(prompt_ns),
        std::make_unique<TransferThread>(must(create_ucx_transport(wanted, epoch))),
        must(create_system_clock()));
    thread_ = std::thread([this] { must(engine_->run()); });
    ready_ = wait<link::Ready>();
  }
  ~Host() {
    send(link::Shutdown{});
    thread_.join();
  }

  void connect(Board& board, Board::Slot here, Board::Slot there) {
    std::string text = ready_.descriptor;
    const auto bytes = [](const std::string& s) { return std::as_bytes(std::span(s)); };
    board.put(here, bytes(text));
    board.put(here == Board::kInitiator ? Board::kRawKey : Board::kPlainKey, bytes(ready_.layout));
    const auto as_text = [](const std::vector<std::byte>& data) {
      return std::string(reinterpret_cast<const char*>(data.data()), data.size());
    };
    send(link::ConnectPeer{.peer_id = kPeer,
                           .epoch = 3 - epoch_,
                           .incarnation = kIncarnation,
                           .mac_key = std::string(32, 'k'),
                           .descriptor = as_text(board.take(there)),
                           .layout = as_text(board.take(
                               here == Board::kInitiator ? Board::kPlainKey : Board::kRawKey))});
    wait<link::PeerConnected>();
  }
  void send(const link::Command& command) { must(front_.send(command)); }

  // The next event of this kind; a failure of any kind ends the benchmark.
  template <typename Event>
  Event wait() {
    const auto deadline = SteadyClock::now() + kWaitMax;
    for (;;) {
      for (auto& event : must(front_.receive())) waiting_.push_back(std::move(event));
      while (!waiting_.empty()) {
        const link::Event event = std::move(waiting_.front());
        waiting_.pop_front();
        if (const auto* ended = std::get_if<link::Ended>(&event)) fail(ended->message);
        if (const auto* down = std::get_if<link::PeerDown>(&event)) fail(down->message);
        if (const auto* wanted = std::get_if<Event>(&event)) return *wanted;
      }
      if (SteadyClock::now() > deadline) fail("no event in time");
      pollfd fd{.fd = front_.to_front_fd(), .events = POLLIN};
      ::poll(&fd, 1, 100);
    }
  }

  std::atomic<uint64_t> prompt_ns = 0;

 private:
  FrontLink front_;
  EngineLink link_;
  const uint64_t epoch_;
  std::unique_ptr<Engine> engine_;
  std::thread thread_;
  std::deque<link::Event> waiting_;
  link::Ready ready_;
};

// Tokens of their own for each round, so that nothing is found in a cache.
link::Task task(int round) {
  std::vector<int32_t> prompt(kPromptTokens);
  for (uint32_t i = 0; i < kPromptTokens; ++i) prompt[i] = (round * 2049 + i) % kVocabSize;
  return {.sequence_id = static_cast<uint64_t>(round) + 1,
          .prompt = std::move(prompt),
          .sampling = {.temperature = 0.0f, .max_tokens = 1, .ignore_eos = true}};
}

// board.phase counts the rounds that have begun.
void run_decode(Board& board, const std::string& transport, uint32_t token_budget) {
  Host host(transport, 2, token_budget);
  host.connect(board, Board::kTarget, Board::kInitiator);
  for (int round = 0;; ++round) {
    while (board.phase.load() <= round) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    host.send(link::Expect{.task = task(round),
                           .handoff_high = 1,
                           .handoff_low = static_cast<uint64_t>(round) + 1,
                           .attempt = 1,
                           .source_epoch = 1});
    host.wait<link::Tokens>();
  }
}

link::HandoffDone hand_off(Host& host, Board& board, uint64_t prompt_ns) {
  const int round = board.phase.fetch_add(1);
  host.prompt_ns.store(prompt_ns);
  host.send(link::Prefill{.task = task(round),
                          .handoff_high = 1,
                          .handoff_low = static_cast<uint64_t>(round) + 1,
                          .attempt = 1,
                          .peer_id = kPeer});
  return host.wait<link::HandoffDone>();
}

// 32 groups and one more a chunk, and of each block one operation a group; a fence (senders.h).
uint32_t operations_max(uint32_t num_chunks) {
  const uint32_t num_blocks = num_prompt_blocks(kPromptTokens);
  return num_blocks * ((32 + num_chunks - 1) / num_chunks + 1) + 1;
}

// Each computation that a transfer is overlapped with takes as long as one that was just made
// alone, of a prompt whose computing takes no time: the machine's speed drifts from one second to
// the next.
void run_prefill(Board& board, const std::string& transport, uint32_t token_budget, int num_pairs) {
  Host host(transport, 1, token_budget);
  host.connect(board, Board::kInitiator, Board::kTarget);
  Samples transfers;
  Samples exposed;
  Samples ratios;
  Samples operations;
  for (int i = -2; i < num_pairs; ++i) {
    const auto alone = hand_off(host, board, 0);
    const uint64_t transfer_ns = alone.prefill_ns + alone.handoff_ns;
    const auto overlapped = hand_off(host, board, transfer_ns);
    if (i < 0) continue;  // page tables
    transfers.add(static_cast<double>(transfer_ns) * 1e-6);
    exposed.add(static_cast<double>(overlapped.handoff_ns) * 1e-6);
    ratios.add(static_cast<double>(transfer_ns) / 10 / static_cast<double>(overlapped.handoff_ns));
    operations.add(overlapped.num_transfers);
  }
  const uint32_t num_chunks = (kPromptTokens + token_budget - 1) / token_budget;
  const std::string name = transport + ", 512 MiB in " + std::to_string(num_chunks) + " chunks";
  Line{name + ", exposed",
       exposed.quantile(0.5),
       "ms",
       transfers.quantile(0.5) / 10,
       ratios.quantile(0.5),
       "a tenth of the transfer alone; computing takes as long as that",
       1.0}
      .print();
  const double bound = operations_max(num_chunks);
  Line{name + ", operations",
       operations.quantile(1.0),
       "ops",
       bound,
       bound / operations.quantile(1.0),
       "their bound",
       1.0}
      .print();
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  using namespace crossdock;
  const int num_pairs = argc > 1 ? std::atoi(argv[1]) : 21;
  for (const std::string transport : {"shm", "tcp"}) {
    for (const uint32_t token_budget : {2048u, 512u, 64u}) {
      run_in_two([&](Board& board) { run_decode(board, transport, token_budget); },
                 [&](Board& board) { run_prefill(board, transport, token_budget, num_pairs); },
                 transport == "tcp");
    }
  }
}
