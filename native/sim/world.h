// Engines, the network between them and the time in which they live: one thread, one seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crossdock/sys/status.h"
#include "engine_process.h"
#include "memory_checker.h"
#include "model.h"
#include "network.h"
#include "timeline.h"

namespace crossdock::sim {

struct EngineStart {
  std::string config_json;  // what crossdock-engine takes; model_directory names the model
  // Of the front's end, which outlives the engine.
  int memory_fd = -1;
  int to_engine_fd = -1;
  int to_front_fd = -1;
  std::string host;
  Pace pace;
};

class World {
 public:
  explicit World(uint64_t seed, bool trace = false);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Result<EngineId> add_engine(const EngineStart& start);
  void kill(EngineId engine);
  void stop(EngineId engine) { network_.stop(at(engine).node()); }
  void resume(EngineId engine) { network_.resume(at(engine).node()); }
  EngineProcess& at(EngineId engine);
  const EngineProcess& at(EngineId engine) const;
  // Engines that ended since the last call.
  std::vector<EngineId> ended();

  std::optional<uint64_t> next_ns();
  // See crossdock_sim.pyi.
  bool advance(uint64_t until_ns);
  // Conservation in every engine, now.
  void check();

  Network& network() { return network_; }
  Timeline& timeline() { return timeline_; }
  const std::vector<Violation>& violations() const { return checker_.violations(); }

 private:
  bool take_turn();
  void check(EngineProcess& engine);
  void note_end(EngineProcess& engine);

  const uint64_t seed_;
  Timeline timeline_;
  MemoryChecker checker_;
  Network network_;
  std::map<std::string, Model> models_;
  std::vector<std::unique_ptr<EngineProcess>> engines_;
  std::vector<EngineId> ended_;
};

}  // namespace crossdock::sim
