// A part of a one-sided operation on its way: the unit in which bytes are taken and land.
#pragma once

#include <cstdint>
#include <vector>

#include "crossdock/transfer/transfer.h"
#include "node.h"

namespace crossdock::sim {

struct Piece {
  enum class Kind : uint8_t { kWrite, kRead, kFence };
  Kind kind = Kind::kWrite;
  OperationId operation = 0;
  StreamId stream = 0;
  Node* issuer = nullptr;
  // Where the bytes come from and where they go.
  Node* source = nullptr;
  Node* target = nullptr;
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t length_bytes = 0;
  std::vector<std::byte> bytes;  // once they are taken
  bool taken = false;
  bool over = false;  // it has landed, or can land no more

  // The memory checker's: what held these bytes when the piece was posted.
  uint64_t source_hash = 0;
  uint64_t holder = 0;
  bool accused = false;
};

}  // namespace crossdock::sim
