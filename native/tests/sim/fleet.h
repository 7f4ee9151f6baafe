// Engines of a simulated world and the fronts' ends of their links, for tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crossdock/engine/link.h"
#include "world.h"

namespace crossdock::sim::testing {

// What became of one sequence, as its front sees it.
struct Outcome {
  std::vector<int32_t> tokens;
  link::Finish finish = link::Finish::kNone;
  bool ended = false;  // without success
  StatusCode code = StatusCode::kOk;
  bool handed_off = false;

  bool over() const { return finish != link::Finish::kNone || ended || handed_off; }
};

struct Front {
  std::unique_ptr<FrontLink> link;
  EngineId engine = 0;
  link::Ready ready;
  std::map<uint64_t, Outcome> outcomes;
  std::map<uint32_t, bool> connected;
  std::map<uint32_t, bool> closed;
  uint64_t num_second_ends = 0;

  void on(const link::Ready& e) { ready = e; }
  void on(const link::Tokens& e);
  void on(const link::HandoffDone& e);
  void on(const link::Ended& e);
  void on(const link::PeerConnected& e) { connected[e.peer_id] = true; }
  void on(const link::PeerDown& e) { closed[e.peer_id] |= e.closed; }
  template <typename Other>
  void on(const Other&) {}
  Outcome& open(uint64_t sequence);
};

class Fleet {
 public:
  explicit Fleet(uint64_t seed, bool trace = false) : world(seed, trace) {}

  // Starts an engine and waits for it.
  Front& add(const std::string& host, uint32_t num_blocks = 64,
             const std::string& transport = "auto", const std::string& kv_dtype = "f32");
  void send(Front& front, const link::Command& command);
  // Tells both of each other; waits until the pair is up.
  void connect(Front& a, Front& b, uint32_t peer);
  // Both halves of one request; `handoff` is its id everywhere.
  void start_handoff(Front& prefill, Front& decode, uint64_t handoff,
                     const std::vector<int32_t>& prompt, uint32_t peer);
  // Runs the world until the condition holds. False where that takes longer than `seconds`.
  bool run_until(const std::function<bool()>& condition, uint64_t seconds = 60);
  void run_for(uint64_t ns);
  // Nothing is owned, quarantined or alive in the engine.
  bool clean(const Front& front);

  World world;
  std::vector<std::unique_ptr<Front>> fronts;

 private:
  void receive();
};

inline constexpr uint32_t kMaxTokens = 12;
std::vector<int32_t> prompt(size_t length, uint64_t seed);
std::vector<int32_t> expected(const std::vector<int32_t>& prompt);

}  // namespace crossdock::sim::testing
