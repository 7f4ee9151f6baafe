// The rotary embedding of a config.json.
#pragma once

#include "crossdock/model/model_config.h"
#include "json_file.h"

namespace crossdock {

// Reads rope_theta and rope_scaling (older) or rope_parameters (newer), all but dim and
// interleaved. context_tokens is max_position_embeddings, which some absent keys mean.
Status read_rope(const JsonFile& file, uint32_t context_tokens, RopeConfig& rope);

}  // namespace crossdock
