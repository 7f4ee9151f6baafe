#include "engine_process.h"

#include <poll.h>

#include <algorithm>
#include <cassert>

#include "engine_inspector.h"
#include "executor.h"

namespace crossdock::sim {
namespace {

bool readable(int fd) {
  pollfd look{.fd = fd, .events = POLLIN};
  return ::poll(&look, 1, 0) > 0;
}

}  // namespace

class SimClock final : public Clock {
 public:
  explicit SimClock(EngineProcess& process) : process_(process) {}
  uint64_t now_ns() const override { return process_.ground_.timeline->now_ns(); }
  // What ends a wait is known: the link and the node's events.
  void watch(int) override {}
  void wait(int timeout_ms) override {
    // A wait without a time still takes some.
    const uint64_t ns = std::max<uint64_t>(1000, uint64_t(std::max(timeout_ms, 0)) * 1'000'000);
    const uint64_t until = timeout_ms < 0 ? UINT64_MAX : now_ns() + ns;
    process_.sleep_until(until, true);
  }

 private:
  EngineProcess& process_;
};

class SimTransfers final : public Transfers {
 public:
  explicit SimTransfers(EngineProcess& process) : process_(process) {}
  std::span<std::byte> segment() override { return process_.ground_.node->segment; }
  const EndpointDescriptor& descriptor() const override {
    return process_.ground_.node->descriptor;
  }
  void submit(Operation operation) override { process_.submit(std::move(operation)); }
  bool drain(std::vector<TransferEvent>& events) override {
    auto& happened = process_.ground_.node->events;
    if (happened.empty()) return false;
    for (TransferEvent& event : happened) events.push_back(std::move(event));
    happened.clear();
    return true;
  }
  // The world needs none.
  int event_fd() const override { return -1; }

 private:
  EngineProcess& process_;
};

EngineProcess::EngineProcess(const Ground& ground, const EngineConfig& config, EngineLink link,
                             int to_front_fd, const Pace& engine_pace)
    : pace(engine_pace),
      ground_(ground),
      config_(config),
      link_(std::move(link)),
      to_front_fd_(to_front_fd),
      fiber_(std::make_unique<Fiber>([this] { run(); })),
      wake_ns_(ground.timeline->now_ns()) {}

EngineProcess::~EngineProcess() { kill(); }

void EngineProcess::run() {
  auto executor =
      std::make_unique<SimExecutor>(*ground_.model, config_.kv_dtype, [this](uint32_t num_tokens) {
        Statistics& statistics = ground_.timeline->statistics;
        const uint64_t step_ns = pace.step_ns + pace.token_ns * num_tokens;
        statistics.computed_tokens += num_tokens;
        ++statistics.layers;
        sleep_until(ground_.timeline->now_ns() + step_ns / kNumLayers, false);
      });
  Engine engine(config_, link_, std::move(executor), std::make_unique<SimTransfers>(*this),
                std::make_unique<SimClock>(*this));
  engine_ = &engine;
  try {
    const Status status = engine.run();
    end(status.ok() ? 0 : 1);
  } catch (const Fiber::Cancelled&) {
    // Its state is looked at before it goes.
    end(kKilled);
    throw;
  }
}

void EngineProcess::end(int exit_code) {
  last_ = inspect();
  engine_ = nullptr;
  exit_code_ = exit_code;
}

void EngineProcess::sleep_until(uint64_t ns, bool wakes_early) {
  wake_ns_ = ns;
  wakes_early_ = wakes_early;
  fiber_->yield();
}

void EngineProcess::submit(Operation operation) {
  uint32_t& left = ground_.node->prepared.operations_to_live;
  if (left > 0 && --left == 0) throw Fiber::Cancelled{};
  ground_.network->submit(*ground_.node, std::move(operation));
}

bool EngineProcess::due() const {
  if (exit_code_.has_value() || ground_.node->stopped) return false;
  if (wake_ns_ <= ground_.timeline->now_ns()) return true;
  return wakes_early_ && (link_ready_ || !ground_.node->events.empty());
}

void EngineProcess::look_at_link() {
  if (!exit_code_.has_value() && readable(link_.wake_fd())) link_ready_ = true;
}

bool EngineProcess::take_turn() {
  const bool was_readable = readable(to_front_fd_);
  link_ready_ = false;
  ++ground_.timeline->statistics.turns;
  fiber_->resume();
  ground_.timeline->note("turn", ground_.node->id, wake_ns_);
  if (fiber_->ended()) {
    // It left without a word where an assertion of its own failed.
    if (!exit_code_.has_value()) exit_code_ = kAborted;
    engine_ = nullptr;
    ground_.network->end(*ground_.node);
  }
  return !was_readable && readable(to_front_fd_);
}

void EngineProcess::kill() {
  if (exit_code_.has_value()) return;
  fiber_->cancel();
  exit_code_ = kKilled;
  ground_.network->end(*ground_.node);
}

Inspection EngineProcess::inspect() const {
  if (engine_ == nullptr) return last_;
  const EngineInspector inspector(*engine_);
  const BlockPool& pool = inspector.scheduler().pool();
  return {.num_blocks = pool.num_blocks(),
          .num_free = pool.num_free(),
          .num_owned = pool.num_owned(),
          .num_cached = pool.num_cached(),
          .num_quarantined = pool.num_quarantined(),
          .num_requests = inspector.num_requests(),
          .num_handoffs = inspector.handoffs().num_live(),
          .num_receiving = inspector.num_receiving(),
          .num_sendings = inspector.num_sendings(),
          .num_staging_free = inspector.num_staging_free(),
          .num_pairs = inspector.num_pairs(),
          .num_store_blocks_read = inspector.store().num_blocks_read(),
          .num_store_blocks_written = inspector.store().num_blocks_written(),
          .num_store_blocks_bad = inspector.store().num_blocks_bad(),
          .counters = inspector.handoffs().counters(),
          .table = inspector.handoffs().describe()};
}

std::optional<BlockUse> EngineProcess::use(uint64_t offset) const {
  if (engine_ == nullptr) return std::nullopt;
  return EngineInspector(*engine_).use(offset);
}

void EngineProcess::check() const {
  if (engine_ != nullptr) EngineInspector(*engine_).check();
}

}  // namespace crossdock::sim
