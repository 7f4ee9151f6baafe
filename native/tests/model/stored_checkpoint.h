// A checkpoint whose tensors have dtypes of their own, to be stored in other ways and broken.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tiny_decoder.h"

namespace crossdock::testing {

struct StoredTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

struct StoredCheckpoint {
  TinyDecoder model;  // its values are what the stored tensors hold, in f32
  std::map<std::string, StoredTensor> tensors;

  // Every tensor as F32.
  explicit StoredCheckpoint(TinyDecoder decoder);
  // Stores a tensor again as "F32", "BF16" or "F16".
  void store_as(const std::string& dtype, const std::string& name);
  // As F8_E4M3 with 128x128 block scales, as DeepSeek-V3 is published.
  void store_as_fp8(const std::string& name);
  // The same for every matrix of the layers but the routers'.
  void store_layers_as_fp8();

  void write(const std::string& directory) const;
};

}  // namespace crossdock::testing
