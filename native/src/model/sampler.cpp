#include "crossdock/model/sampler.h"

#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <string>

#include "crossdock/kernels/math.h"
#include "philox.h"

namespace crossdock {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// NaN counts as impossible, so a broken row still gives a defined token.
float ranked(float logit) { return logit == logit ? logit : kMinusInfinity; }

// Walks the ids that may be chosen, ascending.
template <typename Visit>
void for_allowed(std::span<const float> logits, std::span<const int32_t> banned,
                 const Visit& visit) {
  auto next_banned = banned.begin();
  for (size_t id = 0; id < logits.size(); ++id) {
    while (next_banned != banned.end() && static_cast<size_t>(*next_banned) < id) ++next_banned;
    if (next_banned != banned.end() && static_cast<size_t>(*next_banned) == id) continue;
    visit(static_cast<int32_t>(id), ranked(logits[id]));
  }
}

int32_t greedy(std::span<const float> logits, std::span<const int32_t> banned) {
  int32_t best = -1;
  float best_logit = 0.0f;
  for_allowed(logits, banned, [&](int32_t id, float logit) {
    if (best < 0 || logit > best_logit) {
      best = id;
      best_logit = logit;
    }
  });
  assert(best >= 0 && "every id is banned");
  return best;
}

// Uniform in [0, 1), 53 bits.
double uniform(const SamplingParams& params, uint64_t position, uint32_t draw) {
  const auto bits = philox4x32(
      {params.choice, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), draw},
      {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
  const uint64_t mantissa = ((uint64_t{bits[0]} << 32) | bits[1]) >> 11;
  return static_cast<double>(mantissa) * 0x1p-53;
}

struct Candidate {
  int32_t id = 0;
  float logit = 0.0f;
  float weight = 0.0f;  // exp((logit - max) / temperature)
};

// Lower logit, or the same with a higher id: what a heap puts below.
bool below(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
}

double mass_of(std::span<const Candidate> candidates) {
  double mass = 0.0;
  for (const Candidate& candidate : candidates) mass += double{candidate.weight};
  return mass;
}

// Keeps the top_k best, then of those the fewest whose mass reaches top_p of theirs; best first.
// Returns the mass kept. Only as much is sorted as is kept.
double truncate(std::vector<Candidate>& candidates, const SamplingParams& params) {
  const bool limits_k = params.top_k > 0 && params.top_k < candidates.size();
  if (!limits_k && params.top_p >= 1.0f) return mass_of(candidates);
  std::make_heap(candidates.begin(), candidates.end(), below);
  // Popped candidates gather, best first, at the back of the vector.
  auto heap_end = candidates.end();
  const auto pop = [&] { std::pop_heap(candidates.begin(), heap_end--, below); };
  double total = 0.0;
  if (limits_k) {
    for (uint32_t i = 0; i < params.top_k; ++i) pop();
    std::reverse(heap_end, candidates.end());
    candidates.erase(candidates.begin(), heap_end);
    total = mass_of(candidates);
    double kept = 0.0;
    size_t count = 0;
    while (count < candidates.size() && kept < double{params.top_p} * total) {
      kept += double{candidates[count++].weight};
    }
    candidates.resize(std::max<size_t>(count, 1));
    return mass_of(candidates);
  }
  total = mass_of(candidates);
  double kept = 0.0;
  while (heap_end != candidates.begin() && (kept < double{params.top_p} * total || kept == 0.0)) {
    pop();
    kept += double{heap_end->weight};
  }
  std::reverse(heap_end, candidates.end());
  candidates.erase(candidates.begin(), heap_end);
  return mass_of(candidates);
}

}  // namespace

Status validate(const SamplingParams& params, uint32_t vocab_size) {
  constexpr float kTemperatureMax = 100.0f;
  constexpr size_t kStopTokenIdsMax = 1024;
  const auto invalid = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
  };
  if (!(params.temperature >= 0.0f && params.temperature <= kTemperatureMax)) {
    return invalid("temperature must be from 0 to 100, not " + std::to_string(params.temperature));
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return invalid("top_p must be above 0 and at most 1, not " + std::to_string(params.top_p));
  }
  if (params.top_k > vocab_size) {
    return invalid("top_k must be at most " + std::to_string(vocab_size) + ", not " +
                   std::to_string(params.top_k));
  }
  if (params.max_tokens < 1) return invalid("max_tokens must be at least 1");
  if (params.min_tokens > params.max_tokens) {
    return invalid("min_tokens must be at most max_tokens (" + std::to_string(params.max_tokens) +
                   "), not " + std::to_string(params.min_tokens));
  }
  if (params.stop_token_ids.size() > kStopTokenIdsMax) {
    return invalid("stop_token_ids must hold at most " + std::to_string(kStopTokenIdsMax) +
                   " ids, not " + std::to_string(params.stop_token_ids.size()));
  }
  for (const int32_t id : params.stop_token_ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
      return invalid("stop_token_ids must be from 0 to " + std::to_string(vocab_size - 1) +
                     ", not " + std::to_string(id));
    }
  }
  return {};
}

int32_t sample(std::span<const float> logits, const SamplingParams& params, uint64_t position,
               std::span<const int32_t> banned) {
  const int32_t best = greedy(logits, banned);
  const float max = ranked(logits[static_cast<size_t>(best)]);
  // With an infinite maximum no distribution exists; the best id is the answer that has meaning.
  if (params.temperature == 0.0f || !std::isfinite(max)) return best;
  // Kept between calls so that a step allocates nothing.
  thread_local std::vector<Candidate> candidates;
  candidates.clear();
  for_allowed(logits, banned, [&](int32_t id, float logit) {
    const float weight = kernels::exp_f32((logit - max) / params.temperature);
    candidates.push_back({id, logit, weight});
  });
  const double mass = truncate(candidates, params);
  const double target = uniform(params, position, 0) * mass;
  double passed = 0.0;
  for (const Candidate& candidate : candidates) {
    passed += double{candidate.weight};
    if (passed > target) return candidate.id;
  }
  return best;  // only when rounding lets the sum end at the target
}

LogitDigest digest(std::span<const float> logits) {
  const XXH128_hash_t hash = XXH3_128bits(logits.data(), logits.size_bytes());
  return {hash.low64, hash.high64};
}

}  // namespace crossdock
