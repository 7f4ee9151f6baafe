// What an engine is told at its start, as one JSON object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/model/executor.h"
#include "crossdock/sys/status.h"

namespace crossdock {

struct EngineConfig {
  std::string instance_id;
  std::string model_directory;
  WeightDtype weight_dtype = WeightDtype::kAuto;
  std::string weight_cache_directory;  // of quantised weights; empty: none are kept
  DType kv_dtype = DType::kBf16;
  uint32_t tensor_parallel_size = 1;  // an engine computes all of a model: only 1 is accepted
  MlaPrefill mla_prefill = MlaPrefill::kAbsorbed;
  uint32_t num_threads = 1;
  bool pin_threads = true;  // workers stay on their processors; see ThreadPool
  std::string kernels = "auto";
  uint64_t kv_memory_bytes = 0;
  uint32_t token_budget = 2048;
  bool chunked_prefill = true;  // false: a prompt is computed in one step
  uint32_t step_ms_max = 250;   // what chunks are cut to; 0: no bound
  uint32_t num_sequences_max = 1024;
  std::string transport = "auto";
  std::string bind_interface;
  std::string rdma_device;         // empty: rc is not offered
  std::string gid_index = "auto";  // of the device's port
  bool huge_pages = false;
  bool verify_handoff = false;
  bool store = false;  // a kvstore will be connected: look blocks up there and write them back
};

// INVALID_ARGUMENT names the key and the bound; unknown keys are refused.
Result<EngineConfig> parse_engine_config(std::string_view json);

}  // namespace crossdock
