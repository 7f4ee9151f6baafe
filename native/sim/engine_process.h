// A real engine on simulated ground: its loop in a fiber, its clock, transfers and model the
// world's. It may be killed at every point where it gives control back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "crossdock/engine/config.h"
#include "crossdock/engine/engine.h"
#include "crossdock/engine/link.h"
#include "fiber.h"
#include "model.h"
#include "network.h"
#include "node.h"
#include "timeline.h"

namespace crossdock::sim {

// How long its steps take.
struct Pace {
  uint64_t step_ns = 200'000;
  uint64_t token_ns = 20'000;
};

// An engine from the inside; of one that has ended, as it was then.
struct Inspection {
  uint32_t num_blocks = 0;
  uint32_t num_free = 0;
  uint32_t num_owned = 0;
  uint32_t num_cached = 0;
  uint32_t num_quarantined = 0;
  uint32_t num_requests = 0;
  uint32_t num_handoffs = 0;
  uint32_t num_receiving = 0;
  uint32_t num_sendings = 0;
  uint32_t num_staging_free = 0;
  uint32_t num_pairs = 0;
  uint64_t num_store_blocks_read = 0;
  uint64_t num_store_blocks_written = 0;
  uint64_t num_store_blocks_bad = 0;
  HandoffCounters counters;
  std::string table;
};

class EngineProcess {
 public:
  static constexpr int kKilled = -9;
  static constexpr int kAborted = -6;

  struct Ground {
    Timeline* timeline = nullptr;
    Network* network = nullptr;
    const Model* model = nullptr;
    Node* node = nullptr;
  };

  EngineProcess(const Ground& ground, const EngineConfig& config, EngineLink link, int to_front_fd,
                const Pace& pace);
  ~EngineProcess();
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  Node& node() { return *ground_.node; }
  const std::optional<int>& exit_code() const { return exit_code_; }
  Pace pace;

  // ---- for the world ----
  // Whether it would run now if it were its turn, and when it will by itself.
  bool due() const;
  uint64_t wake_ns() const { return wake_ns_; }
  // Looks whether its front has said something.
  void look_at_link();
  // Runs until it sleeps, computes or ends. Returns whether its front has something new to read.
  bool take_turn();
  void kill();
  void kill_at_operation(uint32_t count) { node().prepared.operations_to_live = count; }
  Inspection inspect() const;
  std::optional<BlockUse> use(uint64_t offset) const;
  void check() const;

 private:
  friend class SimClock;
  friend class SimTransfers;
  void run();
  void sleep_until(uint64_t ns, bool wakes_early);
  void submit(Operation operation);
  void end(int exit_code);

  const Ground ground_;
  const EngineConfig config_;
  EngineLink link_;
  const int to_front_fd_;
  std::unique_ptr<Fiber> fiber_;
  const Engine* engine_ = nullptr;  // while it lives
  uint64_t wake_ns_ = 0;
  bool wakes_early_ = false;  // by events and commands, not by time alone
  bool link_ready_ = false;
  std::optional<int> exit_code_;
  Inspection last_;
};

}  // namespace crossdock::sim
