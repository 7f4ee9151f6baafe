#include "stored_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"

namespace crossdock::testing {
namespace {

constexpr uint64_t kBlock = 128;

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

StoredCheckpoint::StoredCheckpoint(TinyDecoder decoder) : model(std::move(decoder)) {
  for (const auto& [name, tensor] : model.tensors) store_as("F32", name);
}

void StoredCheckpoint::store_as(const std::string& dtype, const std::string& name) {
  TinyTensor& tensor = model.tensors.at(name);
  StoredTensor stored{dtype, tensor.shape, {}};
  for (float& value : tensor.values) {
    if (dtype == "F32") {
      append(stored.bytes, value);
    } else {
      const bool bf16 = dtype == "BF16";
      const uint16_t bits = bf16 ? kernels::round_bf16(value) : kernels::round_f16(value);
      value = bf16 ? kernels::widen_bf16(bits) : kernels::widen_f16(bits);
      append(stored.bytes, bits);
    }
  }
  tensors[name] = std::move(stored);
}

void StoredCheckpoint::store_as_fp8(const std::string& name) {
  TinyTensor& tensor = model.tensors.at(name);
  const uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
  const uint64_t block_columns = (columns + kBlock - 1) / kBlock;
  const uint64_t num_blocks = (rows + kBlock - 1) / kBlock * block_columns;
  std::vector<float> scales(num_blocks, 0.0f);
  const auto block_of = [&](uint64_t i) {
    return i / columns / kBlock * block_columns + i % columns / kBlock;
  };
  for (uint64_t i = 0; i < tensor.values.size(); ++i) {
    float& scale = scales[block_of(i)];
    scale = std::max(scale, std::fabs(tensor.values[i]) / kernels::kE4m3Max);
  }
  StoredTensor codes{"F8_E4M3", tensor.shape, {}};
  for (uint64_t i = 0; i < tensor.values.size(); ++i) {
    const float scale = scales[block_of(i)];
    const uint8_t code = kernels::E4m3::encode(tensor.values[i] / scale);
    append(codes.bytes, code);
    tensor.values[i] = kernels::E4m3::decode(code) * scale;
  }
  StoredTensor stored_scales{"F32", {(rows + kBlock - 1) / kBlock, block_columns}, {}};
  for (const float scale : scales) append(stored_scales.bytes, scale);
  tensors[name] = std::move(codes);
  tensors[name + "_scale_inv"] = std::move(stored_scales);
  model.config["quantization_config"] = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
}

void StoredCheckpoint::store_layers_as_fp8() {
  for (const auto& [name, tensor] : model.tensors) {
    const bool matrix = name.find("_proj") != std::string::npos && tensor.shape.size() == 2;
    if (matrix) store_as_fp8(name);
  }
}

void StoredCheckpoint::write(const std::string& directory) const {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string file;
  append(file, size);
  write_file(directory + "/config.json", model.config.dump());
  write_file(directory + "/model.safetensors", file + text + data);
}

}  // namespace crossdock::testing
