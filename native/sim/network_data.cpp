// What connections carry: pieces of one-sided operations, fences, messages.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "../src/transfer/spans.h"
#include "network.h"

namespace crossdock::sim {
namespace {

using Phase = Side::Phase;

constexpr uint64_t kPieceMinNs = 200;
// A write is done for its sender soon after its bytes were taken, wherever they are then.
constexpr uint64_t kDoneMaxNs = 50'000;
// A transport that misses a completion retries for a while and then gives the pair up.
constexpr uint64_t kGiveUpMinNs = 100'000'000;
constexpr uint64_t kGiveUpMaxNs = 2'000'000'000;
// How late a message may be that is held back or sent once more.
constexpr uint64_t kTamperedMinNs = 100'000'000;
constexpr uint64_t kTamperedMaxNs = 3'000'000'000;

bool inside(uint64_t offset, uint64_t length, const Node& node) {
  return offset <= node.segment.size() && length <= node.segment.size() - offset;
}

}  // namespace

void Network::submit(Node& node, Operation operation) {
  ++timeline_.statistics.operations;
  std::visit([&](auto& concrete) { apply(node, concrete); }, operation);
}

void Network::fail(Node& node, OperationId operation, const Status& status) {
  tell(node, OperationDone{.operation = operation, .status = status});
}

// ---- posting
// -------------------------------------------------------------------------------------

void Network::apply(Node& node, WriteSpans& write) { post_spans(node, Piece::Kind::kWrite, write); }

void Network::apply(Node& node, ReadSpans& read) {
  post_spans(node, Piece::Kind::kRead,
             {read.operation, read.peer, std::move(read.spans), read.stream});
}

void Network::post_spans(Node& node, Piece::Kind kind, const WriteSpans& write) {
  const auto end = find(node, write.peer);
  if (!end.has_value()) {
    return fail(node, write.operation, Status(StatusCode::kNotFound, "no such peer"));
  }
  if (end->side().phase != Phase::kReady) {
    return fail(node, write.operation, Status(StatusCode::kUnavailable, "the pair is broken"));
  }
  const Node& remote = *end->other().node;
  for (const CopySpan& span : write.spans) {
    if (inside(span.local_offset, span.length_bytes, node) &&
        inside(span.remote_offset, span.length_bytes, remote)) {
      continue;
    }
    return fail(node, write.operation, Status(StatusCode::kInvalidArgument, "outside a segment"));
  }
  if (node.prepared.posts_to_fail > 0) {
    --node.prepared.posts_to_fail;
    ++timeline_.statistics.posts_failed;
    timeline_.note("post_failed", node.id, write.operation);
    return fail(node, write.operation, Status(StatusCode::kUnavailable, "could not be posted"));
  }
  post(*end, write.operation, cut(*end, kind, write));
}

std::vector<std::shared_ptr<Piece>> Network::cut(const End& end, Piece::Kind kind,
                                                 const WriteSpans& write) const {
  Node* ours = end.side().node;
  Node* theirs = end.other().node;
  std::vector<std::shared_ptr<Piece>> pieces;
  for (const CopySpan& span : merge_spans(write.spans)) {
    for (uint64_t done = 0; done < span.length_bytes;) {
      auto piece = std::make_shared<Piece>();
      piece->kind = kind;
      piece->operation = write.operation;
      piece->stream = write.stream;
      piece->issuer = ours;
      const bool writes = kind == Piece::Kind::kWrite;
      piece->source = writes ? ours : theirs;
      piece->target = writes ? theirs : ours;
      piece->source_offset = (writes ? span.local_offset : span.remote_offset) + done;
      piece->target_offset = (writes ? span.remote_offset : span.local_offset) + done;
      piece->length_bytes = std::min(conditions.write_chunk_bytes, span.length_bytes - done);
      done += piece->length_bytes;
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

void Network::apply(Node& node, Fence& fence) {
  const auto end = find(node, fence.peer);
  if (!end.has_value() || end->side().phase != Phase::kReady) {
    return fail(node, fence.operation, Status(StatusCode::kUnavailable, "the pair is broken"));
  }
  auto piece = std::make_shared<Piece>();
  piece->kind = Piece::Kind::kFence;
  piece->operation = fence.operation;
  piece->stream = fence.stream;
  piece->issuer = piece->source = end->side().node;
  piece->target = end->other().node;
  if (!broken_promises.fence_proves_nothing) return post(*end, fence.operation, {piece});
  end->side().operations[fence.operation] = {.num_pieces_left = 1};
  complete(*end, fence.operation, Status());
}

void Network::post(const End& end, OperationId operation,
                   std::vector<std::shared_ptr<Piece>> pieces) {
  Side& side = end.side();
  PendingOperation& pending = side.operations[operation];
  pending.num_pieces_left = pieces.size();
  pending.num_transfers = static_cast<uint32_t>(pieces.size());
  pending.posted_ns = timeline_.now_ns();
  timeline_.note("post", side.node->id, operation, pieces.size());
  if (pieces.empty()) return complete(end, operation, Status());
  const bool lost = side.node->prepared.completions_to_lose > 0;
  if (lost) --side.node->prepared.completions_to_lose;
  if (lost || timeline_.random.chance(conditions.lost_completions)) {
    pending.completion_lost = true;
    ++timeline_.statistics.completions_lost;
    const uint64_t after_ns = timeline_.random.between(kGiveUpMinNs, kGiveUpMaxNs);
    at_node(*side.node, timeline_.now_ns() + after_ns, [this, end] {
      break_side(end, Status(StatusCode::kUnavailable, "an operation timed out"));
    });
  }
  const bool futile = !end.connection->shared_memory() && !end.other().open;
  for (auto& piece : pieces) {
    if (piece->kind != Piece::Kind::kFence) {
      piece->over = futile;
      checker_.posted(piece);
    }
    side.flights.push_back(piece);
    side.streams[piece->stream].push_back(std::move(piece));
  }
  serve(end);
}

// ---- moving
// --------------------------------------------------------------------------------------

// The next piece of some stream begins, once the last one's bytes are taken.
void Network::serve(const End& end) {
  Side& side = end.side();
  if (side.serving || side.streams.empty() || !side.node->alive) return;
  if (side.node->stopped && end.connection->kind != TransportKind::kRc) return;
  auto stream = side.streams.begin();
  std::advance(stream, timeline_.random.below(side.streams.size()));
  const auto piece = stream->second.front();
  stream->second.pop_front();
  if (stream->second.empty()) side.streams.erase(stream);
  side.serving = true;
  const PathConditions way = path(*piece->source, *piece->target);
  const uint64_t takes_ns =
      std::max(kPieceMinNs, piece->length_bytes * 1'000'000'000 / way.bytes_per_s);
  auto action = [this, end, piece] {
    end.side().serving = false;
    take(end, piece);
    serve(end);
  };
  if (end.connection->kind == TransportKind::kRc) {
    Node& node = *side.node;
    timeline_.schedule(timeline_.now_ns() + takes_ns, [&node, action] {
      if (node.alive) action();
    });
  } else {
    at_node(*side.node, timeline_.now_ns() + takes_ns, action);
  }
}

void Network::take(const End& end, const std::shared_ptr<Piece>& piece) {
  // What was closed here is never taken; what was closed there is, and goes nowhere.
  if (!end.side().open) return;
  switch (piece->kind) {
    case Piece::Kind::kWrite: return take_write(end, piece);
    case Piece::Kind::kRead: return take_read(end, piece);
    case Piece::Kind::kFence: return take_fence(end, piece);
  }
}

void Network::take_bytes(Piece& piece) {
  if (!piece.over) checker_.taking(piece);
  const std::byte* begin = piece.source->at(piece.source_offset);
  piece.bytes.assign(begin, begin + piece.length_bytes);
  piece.taken = true;
}

void Network::take_write(const End& end, const std::shared_ptr<Piece>& piece) {
  take_bytes(*piece);
  if (end.connection->shared_memory()) {
    land(end, *piece);
    return finish_piece(end, *piece);
  }
  send(end, &Connection::data, delay(*piece->source, *piece->target),
       [this, end, piece] { land(end, *piece); });
  at_node(*end.side().node, timeline_.now_ns() + timeline_.random.below(kDoneMaxNs),
          [this, end, piece] { finish_piece(end, *piece); });
}

void Network::take_read(const End& end, const std::shared_ptr<Piece>& piece) {
  if (end.connection->shared_memory()) {
    take_bytes(*piece);
    land(end, *piece);
    return finish_piece(end, *piece);
  }
  const End there{end.connection, 1 - end.index};
  send(end, &Connection::data, delay(*piece->target, *piece->source), [this, end, there, piece] {
    if (piece->over || !there.side().open) return;
    take_bytes(*piece);
    send(there, &Connection::returns, delay(*piece->source, *piece->target), [this, end, piece] {
      if (piece->over) return;
      land(end, *piece);
      finish_piece(end, *piece);
    });
  });
}

void Network::take_fence(const End& end, const std::shared_ptr<Piece>& piece) {
  piece->taken = true;
  if (end.connection->shared_memory()) return finish_piece(end, *piece);
  const End there{end.connection, 1 - end.index};
  send(end, &Connection::data, delay(*piece->source, *piece->target), [this, end, there, piece] {
    if (!there.side().open) return;
    send(there, &Connection::returns, delay(*piece->target, *piece->source),
         [this, end, piece] { finish_piece(end, *piece); });
  });
}

// The bytes become visible at the target.
void Network::land(const End& issuer, Piece& piece) {
  if (piece.over || !piece.target->alive) return drop(piece);
  checker_.landing(piece);
  std::memcpy(piece.target->at(piece.target_offset), piece.bytes.data(), piece.length_bytes);
  Statistics& statistics = timeline_.statistics;
  ++statistics.pieces_landed;
  statistics.bytes_landed += piece.length_bytes;
  if (!issuer.side().node->alive) ++statistics.landed_late;
  timeline_.note("land", piece.target->id, piece.target_offset, piece.source_hash);
  piece.over = true;
}

void Network::drop(Piece& piece) {
  if (piece.over) return;
  piece.over = true;
  ++timeline_.statistics.pieces_dropped;
}

// As far as its sender can tell.
void Network::finish_piece(const End& end, const Piece& piece) {
  Side& side = end.side();
  std::erase_if(side.flights, [](const auto& flight) { return flight->over && flight->taken; });
  const auto found = side.operations.find(piece.operation);
  if (found == side.operations.end() || side.phase >= Phase::kBroken) return;
  found->second.bytes += piece.length_bytes;
  if (--found->second.num_pieces_left == 0) complete(end, piece.operation, Status());
}

void Network::complete(const End& end, OperationId operation, const Status& status) {
  Side& side = end.side();
  const auto found = side.operations.find(operation);
  if (found == side.operations.end() || found->second.completion_lost) return;
  const PendingOperation pending = found->second;
  side.operations.erase(found);
  timeline_.note("done", side.node->id, operation, uint64_t(status.code()));
  tell(*side.node, OperationDone{.operation = operation,
                                 .status = status,
                                 .bytes = pending.bytes,
                                 .num_transfers = pending.num_transfers,
                                 .duration_ns = timeline_.now_ns() - pending.posted_ns});
  try_close(end);
}

uint64_t Network::num_operations(const Node& node) const {
  uint64_t count = 0;
  for (const auto& [key, connection] : connections_) {
    for (const Side& side : connection->sides) {
      if (side.node == &node) count += side.operations.size();
    }
  }
  return count;
}

// ---- messages
// ------------------------------------------------------------------------------------

void Network::apply(Node& node, Notify& notify) {
  const auto end = find(node, notify.peer);
  // A message to a peer that is broken or closed needs no event: PeerBroken said so.
  if (!end.has_value() || end->side().phase != Phase::kReady) return;
  ++timeline_.statistics.messages;
  const auto tampering = tamperings.take(node.id, notify.message);
  if (!tampering.has_value()) return send_message(*end, notify.message, 0);
  ++timeline_.statistics.messages_tampered;
  timeline_.note("tamper", node.id, uint64_t(tampering->kind));
  const auto message = tampered(*tampering, notify.message, timeline_.random);
  const uint64_t later_ns = timeline_.random.between(kTamperedMinNs, kTamperedMaxNs);
  switch (tampering->kind) {
    case TamperKind::kDrop: return;
    case TamperKind::kDelay: return send_message(*end, message, later_ns);
    case TamperKind::kDuplicate: send_message(*end, message, 0); break;
    case TamperKind::kForge: send_message(*end, notify.message, 0); break;
    case TamperKind::kReplay: {
      const Node* source = &node;
      const Node* target = end->other().node;
      timeline_.schedule(timeline_.now_ns() + later_ns, [this, source, target, message] {
        for_each_end([&](const End& now) {
          const Side& side = now.side();
          if (side.node != source || now.other().node != target) return;
          if (side.phase == Phase::kReady) send_message(now, message, 0);
        });
      });
      break;
    }
    case TamperKind::kTruncate:
    case TamperKind::kIncarnation:
    case TamperKind::kAttempt: break;
  }
  send_message(*end, message, 0);
}

void Network::send_message(const End& end, const std::vector<std::byte>& message,
                           uint64_t extra_ns) {
  const uint64_t delay_ns = delay(*end.side().node, *end.other().node) + extra_ns;
  const End there{end.connection, 1 - end.index};
  send(end, &Connection::messages, delay_ns, [this, there, message] {
    const Side& side = there.side();
    if (side.phase != Phase::kReady) return;
    timeline_.note("message", side.node->id, side.peer, message.size());
    tell(*side.node, MessageArrived{side.peer, message});
  });
}

}  // namespace crossdock::sim
