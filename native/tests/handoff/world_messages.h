// What is said in the world: keys, tokens, and messages that nobody sent.
#pragma once

#include "world.h"

namespace crossdock::testing {

inline Status cancelled() { return {StatusCode::kCancelled, "the caller went away"}; }

// What the prompt of a handoff leads to; anything else in a commit is wrong.
inline ChoiceState true_choice(const HandoffId& id) {
  return {static_cast<int32_t>(100 + id.low), 2, 3};
}

inline uint64_t incarnation_of(PairId pair) { return 100 + pair; }

inline PairKey key_of_pair(PairId pair) {
  PairKey key{};
  key.fill(static_cast<uint8_t>(pair));
  return key;
}

inline bool is_to_d(Stray stray) { return stray < Stray::kAckOfAttempt; }

inline const uint32_t kCommitKind = HandoffMessage(Commit{}).index();

inline bool is_to_d(const HandoffMessage& message) {
  return std::holds_alternative<Open>(message) || std::holds_alternative<Commit>(message) ||
         std::holds_alternative<Aborted>(message);
}

// What would do the most harm if it were believed.
inline HandoffMessage forged_message(const HandoffKey& key, uint32_t num_blocks, uint32_t kind) {
  Commit commit{key, num_blocks, {ChoiceState{-1, 0, 0}}, {}};
  commit.checksum.fill(1);
  const HandoffMessage all[] = {Open{key, (num_blocks + 1) * kBlockTokens},
                                GrantBlocks{key, 0, {1, 0}},
                                Refuse{key, StatusCode::kAborted},
                                Revoke{key},
                                commit,
                                Ack{key},
                                Nack{key, StatusCode::kAborted},
                                Aborted{key}};
  return all[kind];
}

// As the peer on that pair could have made it.
inline HandoffMessage stray_message(const HandoffId& id, uint32_t num_blocks, PairId pair,
                                    Stray stray) {
  HandoffKey key{id, 1, incarnation_of(pair)};
  switch (stray) {
    case Stray::kCommitOfAttempt:
    case Stray::kAbortedOfAttempt:
    case Stray::kAckOfAttempt:
    case Stray::kGrantOfAttempt: key.attempt = 2; break;
    case Stray::kCommitOfIncarnation:
    case Stray::kAbortedOfIncarnation:
    case Stray::kAckOfIncarnation:
    case Stray::kGrantOfIncarnation: key.incarnation += 1000; break;
    default: break;
  }
  switch (stray) {
    case Stray::kAbortedOfAttempt:
    case Stray::kAbortedOfIncarnation:
    case Stray::kAbortedOfPair: return Aborted{key};
    case Stray::kAckOfAttempt:
    case Stray::kAckOfIncarnation: return Ack{key};
    case Stray::kGrantOfAttempt:
    case Stray::kGrantOfIncarnation: return GrantBlocks{key, 0, {1, 0}};
    case Stray::kNack: return Nack{key, StatusCode::kFailedPrecondition};
    default: break;
  }
  return forged_message(key, num_blocks, kCommitKind);
}

}  // namespace crossdock::testing
