// What a dtype makes of a checkpoint's weights: how large they are and how many stay what they
// were.
#pragma once

#include <cstdint>
#include <string>

#include "crossdock/model/executor.h"

namespace crossdock {

struct WeightReport {
  std::string dtype;          // as served; never "auto"
  uint64_t num_weights = 0;   // of all matrices; a tied head is the embedding
  uint64_t num_exact = 0;     // equal to the checkpoint's to the bit
  uint64_t memory_bytes = 0;  // of the packed matrices
  std::string file;           // where they are kept for the next start; empty: nowhere
};

// Loads the weights, from the cache where they are kept, and compares them with the checkpoint's.
Result<WeightReport> report_weights(const std::string& model_directory,
                                    const WeightOptions& options, uint32_t num_threads);

}  // namespace crossdock
