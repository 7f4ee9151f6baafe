// What makes a message of the handoff channel the peer's own: every kind is sealed under the key
// that the pair agreed when it was made.
//
//   version, kind, handoff id, attempt, incarnation, fields (messages.h) | MAC, 16 bytes
//
// The MAC is BLAKE2b-128 over all bytes before it, keyed with the pair's key, salted with the
// sender's epoch (which does not travel: both sides know it). So nobody without the key can make a
// message, change one, carry one over to another pair or to a restarted engine, or send one back to
// its sender. It is checked over the bytes as they came, once, and before anything in them is
// believed: who cannot seal reaches neither the parser nor the tables.
//
// There is no sequence number. Whoever can put bytes on the channel can repeat a message or hold it
// back, but a message within one incarnation says something about an attempt whose id is never used
// again, and what it says stays true: P's writes are all in (commit); none is or will be in flight
// (aborted); D will not take it (refuse, revoke, nack) or has taken it (ack). An open asks for what
// is reserved once, and a grant is acted upon once, by a sender that waits for it. So a repeated
// message is answered or ignored, and the model check repeats, reorders and loses every one of
// them. Such an attacker can slow handoffs down or have them tried again, which is safe, bounded in
// time, and no more than cutting the connection does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "crossdock/handoff/handoff_table.h"

namespace crossdock {

using PairKey = std::array<uint8_t, 32>;  // agreed when the pair was made
inline constexpr size_t kSealBytes = 16;

// Of an encoded message.
std::vector<std::byte> seal(std::vector<std::byte> message, const PairKey& key,
                            uint64_t sender_epoch);
// The encoded message within, or nothing: it is not what the engine of that epoch sealed. In
// constant time for bytes of one length.
std::optional<std::span<const std::byte>> unseal(std::span<const std::byte> sealed,
                                                 const PairKey& key, uint64_t sender_epoch);

// What the table is told of bytes that came in on a pair: Arrived, Forged or Malformed.
HandoffEvent receive(PairId pair, std::span<const std::byte> sealed, const PairKey& key,
                     uint64_t sender_epoch);

}  // namespace crossdock
