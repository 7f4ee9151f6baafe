// Engines and kvstores, the network between them and the time in which they live: one thread, one
// seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crossdock/sys/status.h"
#include "engine_process.h"
#include "fiber.h"
#include "memory_checker.h"
#include "model.h"
#include "network.h"
#include "store_process.h"
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

struct StoreStart {
  std::string host;
  std::string transport;
  uint64_t epoch = 0;
  uint64_t segment_bytes = 0;
};

class World {
 public:
  explicit World(uint64_t seed, bool trace = false);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Result<EngineId> add_engine(const EngineStart& start);
  StoreProcess& add_store(const StoreStart& start);
  // A block of that kvstore. False while it holds none.
  bool corrupt(EngineId store);
  // Engines and kvstores have ids of one kind.
  void kill(EngineId id);
  void stop(EngineId id) { network_.stop(node(id)); }
  void resume(EngineId id) { network_.resume(node(id)); }
  Node& node(EngineId id);
  EngineProcess& at(EngineId engine);
  // Engines that ended since the last call.
  std::vector<EngineId> ended();

  std::optional<uint64_t> next_ns();
  // See crossdock_sim.pyi.
  bool advance(uint64_t until_ns);
  // Conservation in every engine and kvstore, and the bytes of every stored block, now.
  void check();

  Network& network() { return network_; }
  Timeline& timeline() { return timeline_; }
  const std::vector<Violation>& violations() const { return checker_.violations(); }

 private:
  bool take_turn();
  bool take_news();
  void check(EngineProcess& engine);
  void check(StoreProcess& store, bool all);
  bool holds(const std::function<void()>& check);
  std::optional<BlockUse> use(EngineId id, uint64_t offset) const;
  EngineId next_id() const { return static_cast<EngineId>(engines_.size() + stores_.size()); }
  void note_end(EngineProcess& engine);

  const uint64_t seed_;
  Timeline timeline_;
  MemoryChecker checker_;
  Network network_;
  std::map<std::string, Model> models_;
  std::map<EngineId, std::unique_ptr<EngineProcess>> engines_;
  std::map<EngineId, std::unique_ptr<StoreProcess>> stores_;
  std::vector<EngineId> ended_;
};

}  // namespace crossdock::sim
