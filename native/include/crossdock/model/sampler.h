// Picks a token from one row of logits. Pure: the draw depends on (seed, choice, position, draw)
// alone, so a replay anywhere gives the same token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

struct SamplingParams {
  float temperature = 1.0f;  // in [0, 100]; 0: greedy (lowest id wins a tie)
  uint32_t top_k = 0;        // 0: off
  float top_p = 1.0f;        // in (0, 1]
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t max_tokens = 0;  // generated, at most
  uint32_t min_tokens = 0;  // stop ids cannot be chosen before this many are generated
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // the request's own
};

// INVALID_ARGUMENT names the field and the bound.
Status validate(const SamplingParams& params, uint32_t vocab_size);

// logits: vocab_size floats, unchanged. `banned` ids (sorted) are never chosen. position: index of
// the token to be sampled in the sequence, prompt included.
int32_t sample(std::span<const float> logits, const SamplingParams& params, uint64_t position,
               std::span<const int32_t> banned);

// XXH3-128 of the row's bytes: equal digests mean bit-identical logits.
struct LogitDigest {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const LogitDigest&, const LogitDigest&) = default;
};
LogitDigest digest(std::span<const float> logits);

}  // namespace crossdock
