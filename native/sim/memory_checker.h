// Watches every byte that a posted operation may still touch, in the memory of real engines.
//
//   block-reuse          The target of a write is granted to whoever it is for, or in quarantine,
//                        as long as the write can land. The source of a write or read stays as it
//                        was when the operation was posted, until its bytes are taken.
//   commit-before-bytes  No write to a sequence can land once the sequence runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crossdock/blocks/block_pool.h"
#include "crossdock/sched/scheduler.h"
#include "piece.h"
#include "timeline.h"

namespace crossdock::sim {

struct Violation {
  std::string rule;
  EngineId engine = 0;
  uint64_t at_ns = 0;
  std::string text;
};

// What an engine says of one of its blocks, or a kvstore of a slot.
struct BlockUse {
  BlockState state = BlockState::kFree;
  // The handoff's sequence whose table has it beyond what was matched, and that sequence's state.
  std::optional<SequenceId> target_of;
  SequenceState target_state = SequenceState::kWaiting;
  // Of a kvstore's slot, whose reservation stands for a sequence: the engine that may write it.
  // 0: any that was told of the block.
  uint64_t writer_epoch = 0;
  // A kvstore does not see who reads, and may take back what it lent: its readers verify.
  bool readers_verify = false;
};

class MemoryChecker {
 public:
  // Of a node that is an engine or a kvstore; nothing behind its blocks.
  using Look = std::function<std::optional<BlockUse>(EngineId, uint64_t offset)>;

  MemoryChecker(Timeline& timeline, Look look) : timeline_(timeline), look_(std::move(look)) {}

  void posted(const std::shared_ptr<Piece>& piece);
  // Its bytes are about to be read.
  void taking(Piece& piece);
  // Its bytes are about to be written.
  void landing(Piece& piece);
  // The engine has had a turn: whatever it did to its blocks, it did in view of every piece.
  void after_turn(EngineId engine);

  void accuse(const std::string& rule, EngineId engine, const std::string& text);
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  void check_target(Piece& piece);
  void check_source(Piece& piece);
  void accuse(Piece& piece, const std::string& rule, EngineId engine, const std::string& what);

  Timeline& timeline_;
  Look look_;
  std::vector<std::shared_ptr<Piece>> pieces_;  // not over when last looked at
  std::vector<Violation> violations_;
};

}  // namespace crossdock::sim
