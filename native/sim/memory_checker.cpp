#include "memory_checker.h"

#include <algorithm>
#include <cstring>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock::sim {
namespace {

uint64_t hash(const std::byte* bytes, uint64_t length) {
  uint64_t value = length;
  for (uint64_t i = 0; i + 8 <= length; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, sizeof word);
    value = mix(value, word);
  }
  for (uint64_t i = length / 8 * 8; i < length; ++i) value = mix(value, uint8_t(bytes[i]));
  return value;
}

bool may_be_written(const BlockUse& use, SequenceId holder) {
  return use.target_of == holder && (use.target_state == SequenceState::kReserved ||
                                     use.target_state == SequenceState::kQuarantined);
}

// Offsets that name each block of a range once.
template <typename Visit>
void for_each_block(uint64_t offset, uint64_t length, Visit&& visit) {
  // Every layout of the simulated model has blocks of one alignment unit.
  for (uint64_t at = offset / kBlockAlignment * kBlockAlignment; at < offset + length;
       at += kBlockAlignment) {
    visit(at);
  }
}

}  // namespace

void MemoryChecker::posted(const std::shared_ptr<Piece>& piece) {
  if (piece->over) return;
  piece->source_hash = hash(piece->source->at(piece->source_offset), piece->length_bytes);
  if (piece->kind == Piece::Kind::kWrite) {
    const auto use = look_(piece->target->id, piece->target_offset);
    const bool may =
        use.has_value() && (use->writer_epoch == 0 || use->writer_epoch == piece->issuer->epoch());
    if (may && use->target_of.has_value()) piece->holder = *use->target_of;
  }
  check_target(*piece);
  pieces_.push_back(piece);
}

void MemoryChecker::taking(Piece& piece) {
  check_source(piece);
  const auto use = look_(piece.source->id, piece.source_offset);
  if (use.has_value() && use->readers_verify) return;
  if (hash(piece.source->at(piece.source_offset), piece.length_bytes) == piece.source_hash) return;
  accuse(piece, "block-reuse", piece.source->id, "its source changed after it was posted");
}

void MemoryChecker::landing(Piece& piece) {
  check_target(piece);
  const auto use = look_(piece.target->id, piece.target_offset);
  if (use.has_value() && use->state == BlockState::kQuarantined) {
    ++timeline_.statistics.landed_quarantined;
  }
}

void MemoryChecker::after_turn(EngineId engine) {
  std::erase_if(pieces_, [](const auto& piece) { return piece->over; });
  for (const auto& piece : pieces_) {
    if (piece->target->id == engine) check_target(*piece);
    if (piece->source->id == engine && !piece->taken) check_source(*piece);
  }
}

void MemoryChecker::check_target(Piece& piece) {
  for_each_block(piece.target_offset, piece.length_bytes, [&](uint64_t offset) {
    const auto use = look_(piece.target->id, offset);
    if (!use.has_value()) return;
    if (piece.kind == Piece::Kind::kRead) {
      if (use->state == BlockState::kOwned) return;
      return accuse(piece, "block-reuse", piece.target->id, "what it reads into is not owned");
    }
    if (may_be_written(*use, piece.holder)) return;
    if (use->target_of == piece.holder && piece.holder != 0) {
      return accuse(piece, "commit-before-bytes", piece.target->id,
                    "its target runs, and it can still land");
    }
    accuse(piece, "block-reuse", piece.target->id, "its target has passed to another");
  });
}

void MemoryChecker::check_source(Piece& piece) {
  for_each_block(piece.source_offset, piece.length_bytes, [&](uint64_t offset) {
    const auto use = look_(piece.source->id, offset);
    if (!use.has_value() || use->readers_verify || use->state != BlockState::kFree) return;
    accuse(piece, "block-reuse", piece.source->id, "its source is free");
  });
}

void MemoryChecker::accuse(Piece& piece, const std::string& rule, EngineId engine,
                           const std::string& what) {
  if (piece.accused) return;
  piece.accused = true;
  const std::string kind = piece.kind == Piece::Kind::kRead ? "read" : "write";
  accuse(
      rule, engine,
      "a " + kind + " of engine " + std::to_string(piece.issuer->id) + ", operation " +
          std::to_string(piece.operation) + ", from offset " + std::to_string(piece.source_offset) +
          " of engine " + std::to_string(piece.source->id) + " to offset " +
          std::to_string(piece.target_offset) + " of engine " + std::to_string(piece.target->id) +
          ", " + std::to_string(piece.length_bytes) + " bytes: " + what);
}

void MemoryChecker::accuse(const std::string& rule, EngineId engine, const std::string& text) {
  timeline_.note("violation", engine);
  violations_.push_back({rule, engine, timeline_.now_ns(), text});
}

}  // namespace crossdock::sim
