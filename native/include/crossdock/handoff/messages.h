// The messages of the handoff channel. Each names its handoff, attempt and pair incarnation; the
// codec is sys/wire.h, and a message that does not parse to its last byte is refused whole. On the
// channel each is sealed (envelope.h), so what is decoded here is what the peer said.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/sys/status.h"

namespace crossdock {

// 128 random bits, fresh for each attempt; never derived from an id of the caller's.
struct HandoffId {
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const HandoffId&, const HandoffId&) = default;
};
std::string to_string(const HandoffId& id);

struct HandoffKey {  // what every message is about
  HandoffId id;
  uint32_t attempt = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const HandoffKey&, const HandoffKey&) = default;
};

struct Open {  // P -> D: the prompt is about to start
  HandoffKey key;
  uint32_t num_prompt_tokens = 0;
};
struct GrantBlocks {  // D -> P: write here; the first num_matched_blocks are resident, do not send
  HandoffKey key;
  uint32_t num_matched_blocks = 0;
  std::vector<BlockId> blocks;
};
struct Refuse {  // D -> P, instead of a grant
  HandoffKey key;
  StatusCode reason = StatusCode::kOk;
};
struct Revoke {  // D -> P: stop; a commit from now on is refused
  HandoffKey key;
};
// The state of one choice at the end of the prompt.
struct ChoiceState {
  int32_t first_token = 0;
  uint64_t digest_low = 0;  // of the first token's logits, zero when not asked for
  uint64_t digest_high = 0;
};
struct Commit {  // P -> D: every byte is in
  HandoffKey key;
  uint32_t num_blocks = 0;  // of the prompt, matched ones included
  std::vector<ChoiceState> choices;
  std::array<uint8_t, 16> checksum{};  // XXH3-128 over the blocks sent, in order; zero: not made
};
struct Ack {  // D -> P
  HandoffKey key;
};
struct Nack {  // D -> P: commit refused; nothing of it was used
  HandoffKey key;
  StatusCode reason = StatusCode::kOk;
};
struct Aborted {  // P -> D: no write of this handoff is or will be in flight
  HandoffKey key;
};
using HandoffMessage = std::variant<Open, GrantBlocks, Refuse, Revoke, Commit, Ack, Nack, Aborted>;

inline constexpr uint8_t kHandoffVersion = 1;

// Bounds, checked before anything is allocated: 2 M tokens of prompt, 1,024 choices.
inline constexpr size_t kHandoffBlocksMax = 65536;
inline constexpr size_t kHandoffChoicesMax = 1024;
inline constexpr size_t kHandoffMessageBytesMax = 64 + kHandoffBlocksMax * sizeof(BlockId);

// Blocks that a prompt takes.
constexpr uint32_t num_prompt_blocks(uint32_t num_prompt_tokens) {
  return num_prompt_tokens / kBlockTokens + (num_prompt_tokens % kBlockTokens != 0 ? 1 : 0);
}

// Asserts the bounds and that a refusal has a reason: both are ours to keep. Leaves room for a
// seal, so that a long grant is not copied for it.
std::vector<std::byte> encode(const HandoffMessage& message);
// INVALID_ARGUMENT for anything that encode() could not have made.
Result<HandoffMessage> decode_handoff(std::span<const std::byte> bytes);
const HandoffKey& key_of(const HandoffMessage& message);

}  // namespace crossdock
