#include "crossdock/engine/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace crossdock {
namespace {

using Json = nlohmann::json;

Status invalid(const std::string& key, const std::string& expected) {
  return {StatusCode::kInvalidArgument, "engine configuration: " + key + " must be " + expected};
}

// Takes `key` out of `json` into `value`; what is left at the end is unknown.
template <typename T>
Status take(Json& json, const char* key, T& value) {
  auto it = json.find(key);
  if (it == json.end()) return {};
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>) {
    fits = it->is_boolean();
  } else if constexpr (std::is_same_v<T, std::string>) {
    fits = it->is_string();
  } else {
    fits =
        it->is_number_unsigned() && it->template get<uint64_t>() <= std::numeric_limits<T>::max();
  }
  if (!fits)
    return invalid(key, std::is_same_v<T, bool>          ? "true or false"
                        : std::is_same_v<T, std::string> ? "a string"
                                                         : "a non-negative integer");
  value = it->template get<T>();
  json.erase(it);
  return {};
}

Status check(const EngineConfig& config) {
  if (config.model_directory.empty()) return invalid("model_directory", "given");
  if (config.num_threads < 1 || config.num_threads > 256) return invalid("num_threads", "1 to 256");
  if (config.tensor_parallel_size != 1) {
    return invalid("tensor_parallel_size", "1, not " + std::to_string(config.tensor_parallel_size) +
                                               "; an engine computes all of a model");
  }
  if (config.kv_memory_bytes == 0) return invalid("kv_memory_bytes", "greater than 0");
  if (config.token_budget < 32) return invalid("token_budget", "at least 32");
  if (config.num_sequences_max < 1) return invalid("num_sequences_max", "at least 1");
  return {};
}

}  // namespace

Result<EngineConfig> parse_engine_config(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Status(StatusCode::kInvalidArgument, "engine configuration: not a JSON object");
  }
  EngineConfig config;
  std::string weight_dtype = "auto", kv_dtype = "bf16", mla_prefill = "absorbed";
  Status status;
  const auto step = [&](Status next) {
    if (status.ok()) status = std::move(next);
  };
  step(take(json, "instance_id", config.instance_id));
  step(take(json, "model_directory", config.model_directory));
  step(take(json, "weight_dtype", weight_dtype));
  step(take(json, "weight_cache_directory", config.weight_cache_directory));
  step(take(json, "kv_dtype", kv_dtype));
  step(take(json, "tensor_parallel_size", config.tensor_parallel_size));
  step(take(json, "mla_prefill", mla_prefill));
  step(take(json, "num_threads", config.num_threads));
  step(take(json, "pin_threads", config.pin_threads));
  step(take(json, "kernels", config.kernels));
  step(take(json, "kv_memory_bytes", config.kv_memory_bytes));
  step(take(json, "token_budget", config.token_budget));
  step(take(json, "chunked_prefill", config.chunked_prefill));
  step(take(json, "step_ms_max", config.step_ms_max));
  step(take(json, "num_sequences_max", config.num_sequences_max));
  step(take(json, "transport", config.transport));
  step(take(json, "bind_interface", config.bind_interface));
  step(take(json, "rdma_device", config.rdma_device));
  step(take(json, "gid_index", config.gid_index));
  step(take(json, "huge_pages", config.huge_pages));
  step(take(json, "verify_handoff", config.verify_handoff));
  step(take(json, "store", config.store));
  if (!status.ok()) return status;
  if (!json.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "engine configuration: unknown key " + json.begin().key());
  }
  auto weights = parse_weight_dtype(weight_dtype);
  if (!weights.ok()) return weights.status();
  config.weight_dtype = weights.value();
  auto form = parse_mla_prefill(mla_prefill);
  if (!form.ok()) return form.status();
  config.mla_prefill = form.value();
  const auto* dtype = std::find_if(std::begin(kAllDTypes), std::end(kAllDTypes),
                                   [&](DType candidate) { return name(candidate) == kv_dtype; });
  if (dtype == std::end(kAllDTypes)) {
    return invalid("kv_dtype",
                   "f32, bf16, fp8_e4m3, fp8_e5m2 or fp8_ds_mla, not \"" + kv_dtype + "\"");
  }
  config.kv_dtype = *dtype;
  status = check(config);
  if (!status.ok()) return status;
  return config;
}

}  // namespace crossdock
