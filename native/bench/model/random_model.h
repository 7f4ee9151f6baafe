// A checkpoint of SmolLM2-135M's shape with random weights, for machines without the model.
#pragma once

#include <string>

namespace crossdock::bench {

// Writes config.json and model.safetensors (bf16) into `directory`.
void write_random_model(const std::string& directory);

}  // namespace crossdock::bench
