#include "crossdock/engine/request.h"

#include <algorithm>
#include <string>

namespace crossdock {

link::Finish finish_of(const Request& request, int32_t token, uint32_t position,
                       uint32_t context_tokens_max) {
  const uint32_t num_generated = position - request.num_prompt_tokens + 1;
  if (std::binary_search(request.stop_ids.begin(), request.stop_ids.end(), token)) {
    return link::Finish::kStop;
  }
  const bool full = num_generated >= request.sampling.max_tokens;
  return full || position + 1 >= context_tokens_max ? link::Finish::kLength : link::Finish::kNone;
}

std::span<const int32_t> banned_at(const Request& request, uint32_t position) {
  const uint32_t num_generated = position - request.num_prompt_tokens;
  if (num_generated >= request.sampling.min_tokens) return {};
  return request.stop_ids;
}

Result<Request> make_request(const link::Task& task, RequestKind kind, const BlockHash& root,
                             std::span<const int32_t> eos_token_ids, uint32_t vocab_size) {
  if (task.prompt.empty()) {
    return Status(StatusCode::kInvalidArgument, "token_ids: must hold at least one token");
  }
  for (size_t i = 0; i < task.prompt.size(); ++i) {
    if (task.prompt[i] < 0 || static_cast<uint32_t>(task.prompt[i]) >= vocab_size) {
      return Status(StatusCode::kInvalidArgument,
                    "token_ids[" + std::to_string(i) + "]: " + std::to_string(task.prompt[i]) +
                        " is outside the vocabulary of " + std::to_string(vocab_size));
    }
  }
  if (task.num_generated_tokens >= task.prompt.size()) {
    return Status(StatusCode::kInvalidArgument,
                  "num_generated_tokens: " + std::to_string(task.num_generated_tokens) + " of " +
                      std::to_string(task.prompt.size()) +
                      " token_ids; at least the first is a prompt's");
  }
  Request request;
  request.sequence_id = task.sequence_id;
  request.kind = kind;
  request.root = root;
  request.wants_digests = task.wants_digests;
  request.num_prompt_tokens = static_cast<uint32_t>(task.prompt.size());
  const link::Sampling& sampling = task.sampling;
  request.sampling = {.temperature = sampling.temperature,
                      .top_k = sampling.top_k,
                      .top_p = sampling.top_p,
                      .seed = sampling.seed,
                      .choice = sampling.choice,
                      .max_tokens = sampling.max_tokens,
                      .min_tokens = sampling.min_tokens,
                      .ignore_eos = sampling.ignore_eos,
                      .stop_token_ids = sampling.stop_token_ids};
  Status status = validate(request.sampling, vocab_size);
  if (!status.ok()) return status;
  request.stop_ids = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    request.stop_ids.insert(request.stop_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  std::sort(request.stop_ids.begin(), request.stop_ids.end());
  request.stop_ids.erase(std::unique(request.stop_ids.begin(), request.stop_ids.end()),
                         request.stop_ids.end());
  return request;
}

}  // namespace crossdock
