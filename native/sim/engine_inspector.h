// A look into a running engine, for checkers. Reads only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "crossdock/engine/engine.h"
#include "memory_checker.h"

namespace crossdock {

class EngineInspector {
 public:
  explicit EngineInspector(const Engine& engine) : engine_(engine) {}

  const Scheduler& scheduler() const { return engine_.scheduler_; }
  const HandoffTable& handoffs() const { return engine_.table_; }
  uint32_t num_requests() const { return static_cast<uint32_t>(engine_.requests_.size()); }
  uint32_t num_pairs() const { return static_cast<uint32_t>(engine_.peers_.all().size()); }
  uint32_t num_receiving() const { return static_cast<uint32_t>(engine_.receiving_.size()); }
  uint32_t num_sendings() const { return static_cast<uint32_t>(engine_.senders_.sendings_.size()); }
  const StoreTraffic& store() const { return engine_.store_; }
  uint32_t num_staging_free() const { return engine_.senders_.staging_.num_free(); }
  // Aborts unless pool, tree and scheduler agree.
  void check() const { engine_.scheduler_.check(); }
  // Of the block at this offset of the segment; nothing behind the pool.
  std::optional<sim::BlockUse> use(uint64_t offset) const;

 private:
  const Engine& engine_;
};

}  // namespace crossdock
