// An engine on a thread of its own, and the front's end of its link, for tests. Engines of one hub
// reach each other by the loopback transport.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../model/tiny_decoder.h"
#include "crossdock/engine/engine.h"
#include "crossdock/sys/clock.h"
#include "crossdock/transfer/loopback.h"
#include "crossdock/transfer/transfer_thread.h"

namespace crossdock::testing {

// What became of one sequence, as the front sees it.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> digests;
  link::Finish finish = link::Finish::kNone;
  bool ended = false;  // without success
  StatusCode code = StatusCode::kOk;
  bool handed_off = false;
  uint32_t num_cached_tokens = 0;
  size_t num_tokens_first = 0;  // in the first message that brought any

  bool over() const { return finish != link::Finish::kNone || ended || handed_off; }
};

// Sleeps and wakes as the machine's, and shows one moment: no wait of the engine runs out however
// slow the machine is, and it learns no time that a step takes.
class StillClock final : public Clock {
 public:
  explicit StillClock(std::unique_ptr<Clock> machine) : machine_(std::move(machine)) {}
  uint64_t now_ns() const override { return 1'000'000'000; }
  void watch(int fd) override { machine_->watch(fd); }
  void wait(int timeout_ms) override { machine_->wait(timeout_ms); }

 private:
  std::unique_ptr<Clock> machine_;
};

struct HostOptions {
  DType kv_dtype = DType::kF32;
  MlaPrefill mla_prefill = MlaPrefill::kAbsorbed;
  bool time_stands_still = false;
  // Puts something between the engine and its transport.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap;
};

class EngineHost {
 public:
  EngineHost(LoopbackHub& hub, const std::string& model, uint64_t epoch, uint32_t num_blocks,
             const HostOptions& options = {})
      : epoch_(epoch) {
    auto front = FrontLink::create(1 << 20);
    front_ = std::make_unique<FrontLink>(std::move(front).value());
    auto link =
        EngineLink::attach(front_->memory_fd(), front_->to_engine_fd(), front_->to_front_fd());
    link_ = std::make_unique<EngineLink>(std::move(link).value());
    auto executor = load_cpu_executor({.model_directory = model,
                                       .kv_dtype = options.kv_dtype,
                                       .mla_prefill = options.mla_prefill});
    EXPECT_TRUE(executor.ok()) << executor.status().to_string();
    const KvLayout& layout = executor.value()->layout();
    const uint64_t bytes = num_blocks * layout.stride_bytes();
    auto transport = hub.create_transport({.segment_bytes = bytes + Staging::bytes(layout)}, epoch);
    EXPECT_TRUE(transport.ok()) << transport.status().to_string();
    auto wired = std::move(transport).value();
    if (options.wrap) wired = options.wrap(std::move(wired));
    EngineConfig config{.instance_id = "engine-" + std::to_string(epoch),
                        .model_directory = model,
                        .mla_prefill = options.mla_prefill,
                        .kv_memory_bytes = bytes,
                        .token_budget = 64,
                        .verify_handoff = true};
    auto clock = std::move(create_system_clock()).value();
    if (options.time_stands_still) clock = std::make_unique<StillClock>(std::move(clock));
    engine_ = std::make_unique<Engine>(config, *link_, std::move(executor).value(),
                                       std::make_unique<TransferThread>(std::move(wired)),
                                       std::move(clock));
    thread_ = std::thread([this] { status_ = engine_->run(); });
    wait([this] { return ready_.num_blocks != 0; });
  }

  ~EngineHost() {
    send(link::Shutdown{});
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.to_string();
  }

  void send(const link::Command& command) {
    const Status status = front_->send(command);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  // Takes events until the condition holds; fails after a bound that only a hang reaches.
  void wait(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      auto events = front_->receive();
      ASSERT_TRUE(events.ok());
      for (const auto& event : events.value()) {
        std::visit([this](const auto& e) { on(e); }, event);
      }
      if (condition()) return;
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the engine does not get there";
      pollfd wait{.fd = front_->to_front_fd(), .events = POLLIN};
      poll(&wait, 1, 100);
    }
  }

  link::StatusReport report() {
    const uint64_t before = num_reports_;
    send(link::QueryStatus{});
    wait([this, before] { return num_reports_ > before; });
    return report_;
  }

  uint64_t counter(const std::string& name) {
    for (const auto& counter : report().counters) {
      if (counter.name == name) return counter.value;
    }
    ADD_FAILURE() << "no counter is named " << name;
    return 0;
  }

  // Until no block is owned or quarantined and no handoff lives.
  void wait_until_clean() {
    wait([this] {
      report();
      return report_.num_owned == 0 && report_.num_quarantined == 0 && report_.num_handoffs == 0 &&
             report_.num_running == 0 && report_.num_waiting == 0;
    });
    EXPECT_EQ(report_.num_free + report_.num_cached, report_.num_blocks);
  }

  Outcome& outcome(uint64_t id) { return outcomes_[id]; }
  const link::Ready& ready() const { return ready_; }
  uint64_t epoch() const { return epoch_; }
  bool peer_connected(uint32_t id) const { return connected_.contains(id); }
  bool peer_closed(uint32_t id) const { return closed_.contains(id); }

 private:
  void on(const link::Ready& e) { ready_ = e; }
  void on(const link::Tokens& e) {
    std::map<uint64_t, size_t> num_tokens;
    for (const auto& token : e.tokens) ++num_tokens[token.sequence_id];
    for (const auto& [id, count] : num_tokens) {
      if (outcomes_[id].tokens.empty()) outcomes_[id].num_tokens_first = count;
    }
    for (const auto& token : e.tokens) {
      Outcome& outcome = outcomes_[token.sequence_id];
      EXPECT_FALSE(outcome.over()) << "a token after the end";
      outcome.tokens.push_back(token.token);
      outcome.digests.push_back(token.digest_low ^ token.digest_high);
      outcome.finish = token.finish;
    }
  }
  void on(const link::Started& e) {
    outcomes_[e.sequence_id].num_cached_tokens = e.num_cached_tokens;
  }
  void on(const link::HandoffDone& e) {
    EXPECT_FALSE(outcomes_[e.sequence_id].over()) << "a second end";
    outcomes_[e.sequence_id].handed_off = true;
  }
  void on(const link::Ended& e) {
    EXPECT_FALSE(outcomes_[e.sequence_id].over()) << "a second end";
    outcomes_[e.sequence_id].ended = true;
    outcomes_[e.sequence_id].code = static_cast<StatusCode>(e.code);
  }
  void on(const link::PeerConnected& e) { connected_[e.peer_id] = true; }
  void on(const link::PeerDown& e) {
    if (e.closed) closed_[e.peer_id] = true;
  }
  void on(const link::StatusReport& e) {
    report_ = e;
    ++num_reports_;
  }
  template <typename Other>
  void on(const Other&) {
    ADD_FAILURE() << "an event that this test does not expect";
  }

  uint64_t epoch_;
  std::unique_ptr<FrontLink> front_;
  std::unique_ptr<EngineLink> link_;
  std::unique_ptr<Engine> engine_;
  std::thread thread_;
  Status status_;
  link::Ready ready_;
  link::StatusReport report_;
  uint64_t num_reports_ = 0;
  std::map<uint64_t, Outcome> outcomes_;
  std::map<uint32_t, bool> connected_;
  std::map<uint32_t, bool> closed_;
};

inline link::Task task(uint64_t id, std::vector<int32_t> prompt, uint32_t max_tokens) {
  return {.sequence_id = id,
          .prompt = std::move(prompt),
          .sampling = {.temperature = 0.0f, .max_tokens = max_tokens, .ignore_eos = true},
          .wants_digests = true};
}

inline void connect(EngineHost& prefill, EngineHost& decode, uint32_t peer, uint64_t incarnation,
                    char key_of_decode = 'k') {
  const auto command = [&](const EngineHost& remote, char key) {
    return link::ConnectPeer{.peer_id = peer,
                             .epoch = remote.epoch(),
                             .incarnation = incarnation,
                             .mac_key = link::Bytes(32, key),
                             .descriptor = remote.ready().descriptor,
                             .layout = remote.ready().layout};
  };
  prefill.send(command(decode, 'k'));
  decode.send(command(prefill, key_of_decode));
  prefill.wait([&] { return prefill.peer_connected(peer); });
  decode.wait([&] { return decode.peer_connected(peer); });
}

// Sends one request to both engines; `handoff` is its id everywhere.
inline void start_handoff(EngineHost& prefill, EngineHost& decode, uint64_t handoff,
                          const std::vector<int32_t>& prompt, uint32_t max_tokens,
                          uint32_t peer = 1) {
  decode.send(link::Expect{.task = task(handoff, prompt, max_tokens),
                           .handoff_high = handoff,
                           .handoff_low = handoff,
                           .attempt = 1,
                           .source_epoch = prefill.epoch()});
  prefill.send(link::Prefill{.task = task(handoff, prompt, max_tokens),
                             .handoff_high = handoff,
                             .handoff_low = handoff,
                             .attempt = 1,
                             .peer_id = peer});
}

}  // namespace crossdock::testing
