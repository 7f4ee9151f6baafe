// The pairs of this engine: who is connected, in which incarnation, in which state.
//
//   connecting -> ready -> closing -> closed -> (forgotten)
//   connecting -> closing
// A broken peer goes to closing at once. It is closed when nothing of ours is in flight on it, and
// forgotten when nothing of theirs can land here any more.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/engine/messages.h"
#include "crossdock/handoff/envelope.h"
#include "crossdock/transfer/transfer.h"

namespace crossdock {

enum class PeerState : uint8_t { kConnecting, kReady, kClosing, kClosed };

// What the bytes of an engine's blocks mean: their layout, and how they are computed.
struct CacheFormat {
  KvLayout layout;
  std::string numerics_id;  // `;`-separated parts
  friend bool operator==(const CacheFormat&, const CacheFormat&) = default;
};
std::string encode(const CacheFormat& format);
// Checks that blocks of the one can be made from the other's: the layouts and the numerics differ
// at most in the KV dtype. FAILED_PRECONDITION carries both, in words. What the peer has.
Result<CacheFormat> check_format(const CacheFormat& ours, const std::string& encoded);

struct Peer {
  PeerId id = 0;
  uint64_t epoch = 0;
  uint64_t incarnation = 0;
  PairKey key{};
  bool store = false;
  PeerState state = PeerState::kConnecting;
  TransportKind transport = TransportKind::kSharedMemory;
  CacheFormat format;  // of an engine
};

class Peers {
 public:
  // INVALID_ARGUMENT for a malformed command, ALREADY_EXISTS for a known id. The Connect to submit.
  Result<Connect> add(const link::ConnectPeer& command, const CacheFormat& ours);
  Peer* find(PeerId id);
  // The engine of that epoch whose pair is up, or null.
  const Peer* of_epoch(uint64_t epoch) const;
  // The connected kvstore, or null.
  const Peer* store() const;
  void forget(PeerId id) { peers_.erase(id); }
  const std::map<PeerId, Peer>& all() const { return peers_; }

 private:
  std::map<PeerId, Peer> peers_;
};

}  // namespace crossdock
