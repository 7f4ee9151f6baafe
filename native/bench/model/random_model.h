// Checkpoints with random weights, for machines without the models.
#pragma once

#include <string>

namespace crossdock::bench {

// Write config.json and model.safetensors (bf16) into `directory`: of SmolLM2-135M's shape, and two
// layers whose latent attention has the dimensions of DeepSeek-V3's heads, though only 16 of them.
void write_random_model(const std::string& directory);
void write_random_mla_model(const std::string& directory);

}  // namespace crossdock::bench
