// What the front and the engine tell each other, as plain structs. `fields()` lists a message's
// members once; the codec and nothing else walks them. One codec serves both languages: Python
// holds these same structs through the binding.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "crossdock/sys/status.h"

#define CROSSDOCK_FIELDS(...)                     \
  auto fields() { return std::tie(__VA_ARGS__); } \
  auto fields() const { return std::tie(__VA_ARGS__); }

namespace crossdock::link {

using Bytes = std::string;  // raw bytes; std::string so that Python sees `bytes` in one copy

struct Sampling {
  float temperature = 1.0f;
  uint32_t top_k = 0;
  float top_p = 1.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t max_tokens = 0;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  CROSSDOCK_FIELDS(temperature, top_k, top_p, seed, choice, max_tokens, min_tokens, ignore_eos,
                   stop_token_ids)
};

// A block of the kvstore: where it lies in the store's segment and what it must hash to.
struct StoredBlock {
  uint64_t hash_low = 0;
  uint64_t hash_high = 0;
  uint64_t offset_bytes = 0;
  uint64_t generation = 0;
  uint64_t checksum_low = 0;  // XXH3-128 of the block's bytes
  uint64_t checksum_high = 0;
  CROSSDOCK_FIELDS(hash_low, hash_high, offset_bytes, generation, checksum_low, checksum_high)
};

// What every request carries, wherever it is computed. sequence_id is the front's, never reused
// within one engine's life.
struct Task {
  uint64_t sequence_id = 0;
  std::vector<int32_t> prompt;
  // Of the prompt, the last: those that an earlier attempt generated.
  uint32_t num_generated_tokens = 0;
  Sampling sampling;
  Bytes tenant_salt;
  bool wants_digests = false;
  CROSSDOCK_FIELDS(sequence_id, prompt, num_generated_tokens, sampling, tenant_salt, wants_digests)
};

// ---- front to engine --------------------------------------------------------------------------
struct Generate {  // prefill and decode here
  Task task;
  CROSSDOCK_FIELDS(task)
};
struct Expect {  // decode here, once the engine of source_epoch has handed the prompt off
  Task task;
  uint64_t handoff_high = 0;
  uint64_t handoff_low = 0;
  uint32_t attempt = 0;
  uint64_t source_epoch = 0;
  CROSSDOCK_FIELDS(task, handoff_high, handoff_low, attempt, source_epoch)
};
struct Prefill {  // compute the prompt and hand it to the engine behind peer_id
  Task task;
  uint64_t handoff_high = 0;
  uint64_t handoff_low = 0;
  uint32_t attempt = 0;
  uint32_t peer_id = 0;
  CROSSDOCK_FIELDS(task, handoff_high, handoff_low, attempt, peer_id)
};
struct Cancel {
  uint64_t sequence_id = 0;
  CROSSDOCK_FIELDS(sequence_id)
};
// Makes a pair. Answered by PeerConnected (usable) or PeerDown. `store`: the peer is a kvstore.
struct ConnectPeer {
  uint32_t peer_id = 0;
  uint64_t epoch = 0;
  uint64_t incarnation = 0;
  Bytes mac_key;     // 32 bytes
  Bytes descriptor;  // EngineEndpoint.descriptor
  Bytes layout;      // EngineEndpoint.layout
  bool store = false;
  CROSSDOCK_FIELDS(peer_id, epoch, incarnation, mac_key, descriptor, layout, store)
};
// Breaks a pair; answered by PeerDown with closed = true. Idempotent.
struct DisconnectPeer {
  uint32_t peer_id = 0;
  CROSSDOCK_FIELDS(peer_id)
};
// The liveness channel of this engine epoch ended: its expectations are lost.
struct PeerLost {
  uint64_t epoch = 0;
  CROSSDOCK_FIELDS(epoch)
};
// Answers StoreLookup: the blocks pinned under lease_id (0: none).
struct StoreFound {
  uint64_t sequence_id = 0;
  uint32_t peer_id = 0;
  uint64_t lease_id = 0;
  std::vector<StoredBlock> blocks;
  CROSSDOCK_FIELDS(sequence_id, peer_id, lease_id, blocks)
};
// Answers StoreOffer: where to write which of the offered blocks (lease_id 0: none is wanted;
// peer_id 0: no store could be asked).
struct StorePlaces {
  uint64_t offer_id = 0;
  uint32_t peer_id = 0;
  uint64_t lease_id = 0;
  std::vector<StoredBlock> blocks;
  CROSSDOCK_FIELDS(offer_id, peer_id, lease_id, blocks)
};
struct QueryStatus {
  CROSSDOCK_FIELDS()
};
struct Shutdown {
  CROSSDOCK_FIELDS()
};
using Command = std::variant<Generate, Expect, Prefill, Cancel, ConnectPeer, DisconnectPeer,
                             PeerLost, StoreFound, StorePlaces, QueryStatus, Shutdown>;

// ---- engine to front --------------------------------------------------------------------------
struct Ready {  // once, first
  uint64_t epoch = 0;
  Bytes descriptor;
  Bytes layout;
  std::string layout_text;
  std::string numerics_id;
  uint32_t num_blocks = 0;
  uint32_t block_stride_bytes = 0;
  uint32_t context_tokens_max = 0;
  uint32_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  CROSSDOCK_FIELDS(epoch, descriptor, layout, layout_text, numerics_id, num_blocks,
                   block_stride_bytes, context_tokens_max, vocab_size, eos_token_ids)
};
struct StartFailed {  // instead of Ready; the engine then exits with a non-zero code
  uint8_t code = 0;
  std::string message;
  CROSSDOCK_FIELDS(code, message)
};

enum class Finish : uint8_t { kNone = 0, kStop = 1, kLength = 2 };

struct SequenceToken {
  uint64_t sequence_id = 0;
  int32_t token = 0;
  uint32_t position = 0;  // in the sequence, prompt included
  uint64_t digest_low = 0;
  uint64_t digest_high = 0;
  Finish finish = Finish::kNone;
  CROSSDOCK_FIELDS(sequence_id, token, position, digest_low, digest_high, finish)
};
// The tokens of one step, all sequences. A sequence whose token has a finish is over, and no other
// message about it follows. First tokens of expected sequences come here too.
struct Tokens {
  std::vector<SequenceToken> tokens;
  CROSSDOCK_FIELDS(tokens)
};
// Precedes a sequence's first token where it was prefilled or received here.
struct Started {
  uint64_t sequence_id = 0;
  uint32_t num_cached_tokens = 0;
  uint64_t queue_ns = 0;
  uint64_t prefill_ns = 0;
  CROSSDOCK_FIELDS(sequence_id, num_cached_tokens, queue_ns, prefill_ns)
};
// A Prefill command ended well: the commit was acknowledged.
struct HandoffDone {
  uint64_t sequence_id = 0;
  int32_t first_token = 0;
  uint32_t position = 0;
  uint64_t digest_low = 0;
  uint64_t digest_high = 0;
  uint32_t num_cached_tokens = 0;
  uint64_t queue_ns = 0;
  uint64_t prefill_ns = 0;
  uint64_t handoff_ns = 0;
  uint64_t handoff_bytes = 0;
  uint32_t num_transfers = 0;
  uint64_t transfer_ns = 0;
  CROSSDOCK_FIELDS(sequence_id, first_token, position, digest_low, digest_high, num_cached_tokens,
                   queue_ns, prefill_ns, handoff_ns, handoff_bytes, num_transfers, transfer_ns)
};
// The sequence is over without success. code is a StatusCode; a lost handoff is UNAVAILABLE, a
// refused one RESOURCE_EXHAUSTED, a cancel CANCELLED.
struct Ended {
  uint64_t sequence_id = 0;
  uint8_t code = 0;
  std::string message;
  CROSSDOCK_FIELDS(sequence_id, code, message)
};
struct PeerConnected {
  uint32_t peer_id = 0;
  std::string transport;
  std::string not_shared;  // why data does not go through shared memory; empty: it does
  std::string staged;      // why it is copied through UCX's buffers; empty: no segment needs it
  CROSSDOCK_FIELDS(peer_id, transport, not_shared, staged)
};
// The pair is broken (closed = false: the front ends the stream and sends DisconnectPeer) or
// closed for good (closed = true: nothing of ours is in flight any more).
struct PeerDown {
  uint32_t peer_id = 0;
  bool closed = false;
  uint8_t code = 0;
  std::string message;
  CROSSDOCK_FIELDS(peer_id, closed, code, message)
};
// Which of these blocks does the store hold? Answered by StoreFound.
struct StoreLookup {
  uint64_t sequence_id = 0;
  std::vector<uint64_t> chain;  // low, high, low, high, ...
  CROSSDOCK_FIELDS(sequence_id, chain)
};
// The reads under a lease ended. `bad` lists hashes whose bytes did not match their checksum.
struct StoreReadDone {
  uint64_t lease_id = 0;
  std::vector<uint64_t> bad;
  CROSSDOCK_FIELDS(lease_id, bad)
};
// Full blocks that the store may want. Answered by StorePlaces.
struct StoreOffer {
  uint64_t offer_id = 0;
  std::vector<uint64_t> hashes;
  CROSSDOCK_FIELDS(offer_id, hashes)
};
// The writes under a lease ended: `blocks` (with checksums) arrived and may be published; none
// when they failed.
struct StoreWritten {
  uint64_t lease_id = 0;
  std::vector<StoredBlock> blocks;
  CROSSDOCK_FIELDS(lease_id, blocks)
};
struct NamedCount {
  std::string name;
  uint64_t value = 0;
  CROSSDOCK_FIELDS(name, value)
};
// What this engine moved over a pair; the names are those of PairTraffic's fields.
struct PairReport {
  uint32_t peer_id = 0;
  std::vector<NamedCount> counters;
  CROSSDOCK_FIELDS(peer_id, counters)
};
struct StatusReport {
  uint32_t num_blocks = 0;
  uint32_t num_free = 0;
  uint32_t num_owned = 0;
  uint32_t num_cached = 0;
  uint32_t num_quarantined = 0;
  uint32_t quarantined_blocks_max = 0;  // above it nothing is reserved
  uint32_t num_running = 0;
  uint32_t num_waiting = 0;
  uint32_t num_handoffs = 0;
  uint64_t num_steps = 0;
  uint64_t queued_tokens = 0;
  std::vector<NamedCount> counters;
  std::vector<PairReport> pairs;
  CROSSDOCK_FIELDS(num_blocks, num_free, num_owned, num_cached, num_quarantined,
                   quarantined_blocks_max, num_running, num_waiting, num_handoffs, num_steps,
                   queued_tokens, counters, pairs)
};
using Event =
    std::variant<Ready, StartFailed, Tokens, Started, HandoffDone, Ended, PeerConnected, PeerDown,
                 StoreLookup, StoreReadDone, StoreOffer, StoreWritten, StatusReport>;

std::vector<std::byte> encode(const Command& command);
std::vector<std::byte> encode(const Event& event);
Result<Command> decode_command(std::span<const std::byte> bytes);
Result<Event> decode_event(std::span<const std::byte> bytes);

}  // namespace crossdock::link

#undef CROSSDOCK_FIELDS
