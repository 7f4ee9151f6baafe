// One request as the engine's loop knows it, beside its sequence in the scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "crossdock/engine/messages.h"
#include "crossdock/handoff/messages.h"
#include "crossdock/model/sampler.h"
#include "crossdock/prefix/block_hash.h"
#include "crossdock/sched/scheduler.h"

namespace crossdock {

enum class RequestKind : uint8_t {
  kLocal,     // prefilled and decoded here
  kSender,    // prefilled here, handed off
  kReceiver,  // received, decoded here
};

struct Request {
  SequenceId sequence_id = 0;
  RequestKind kind = RequestKind::kLocal;
  SamplingParams sampling;
  BlockHash root;
  bool wants_digests = false;
  uint32_t num_prompt_tokens = 0;  // those that an earlier attempt generated among them
  // Where generated positions begin, if their blocks are other than a prompt's (see Submission).
  uint32_t first_generated = UINT32_MAX;
  std::vector<int32_t> stop_ids;  // sorted: the model's (unless ignored) and the request's own
  HandoffId handoff;              // sender and receiver
  std::vector<int32_t> prompt;    // receiver: until its blocks are reserved
  bool started = false;
  uint64_t accepted_ns = 0;
  uint64_t started_ns = 0;   // its first step began
  uint64_t computed_ns = 0;  // its first token was sampled
};

using RequestMap = std::unordered_map<SequenceId, Request>;

// What the first token of `request` at `position` (or any later one) means for it.
link::Finish finish_of(const Request& request, int32_t token, uint32_t position,
                       uint32_t context_tokens_max);

// The ids that may not be sampled at `position`: the stop ids while min_tokens holds.
std::span<const int32_t> banned_at(const Request& request, uint32_t position);

// INVALID_ARGUMENT names the field and the bound.
Result<Request> make_request(const link::Task& task, RequestKind kind, const BlockHash& root,
                             std::span<const int32_t> eos_token_ids, uint32_t vocab_size);

}  // namespace crossdock
