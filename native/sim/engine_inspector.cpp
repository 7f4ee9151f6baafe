#include "engine_inspector.h"

#include <algorithm>

namespace crossdock {

std::optional<sim::BlockUse> EngineInspector::use(uint64_t offset) const {
  const Scheduler& scheduler = engine_.scheduler_;
  const uint64_t block = offset / engine_.executor_->layout().stride_bytes();
  if (block >= scheduler.pool().num_blocks()) return std::nullopt;
  sim::BlockUse use{.state = scheduler.pool().state(static_cast<BlockId>(block))};
  for (const auto& [handoff, receiving] : engine_.receiving_) {
    if (!scheduler.contains(receiving.sequence_id)) continue;
    auto table = scheduler.block_table(receiving.sequence_id);
    table = table.subspan(std::min<size_t>(receiving.num_matched_blocks, table.size()));
    if (std::find(table.begin(), table.end(), block) == table.end()) continue;
    use.target_of = receiving.sequence_id;
    use.target_state = scheduler.state(receiving.sequence_id);
  }
  return use;
}

}  // namespace crossdock
