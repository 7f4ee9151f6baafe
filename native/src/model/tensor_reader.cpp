#include "tensor_reader.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"

namespace crossdock {
namespace {

// `stride` in elements; the file may be unaligned.
template <typename Bits, typename Widen>
void widen_line(const std::byte* from, size_t stride, uint32_t depth, float* to, Widen widen) {
  for (uint32_t k = 0; k < depth; ++k) {
    Bits bits;
    std::memcpy(&bits, from + k * stride * sizeof(Bits), sizeof(Bits));
    to[k] = widen(bits);
  }
}

void widen_elements(const Tensor& tensor, size_t first, size_t stride, uint32_t depth, float* to) {
  const std::byte* data = tensor.bytes.data();
  if (tensor.dtype == "F32") {
    widen_line<float>(data + first * 4, stride, depth, to, [](float value) { return value; });
  } else if (tensor.dtype == "BF16") {
    widen_line<uint16_t>(data + first * 2, stride, depth, to, kernels::widen_bf16);
  } else if (tensor.dtype == "F16") {
    widen_line<uint16_t>(data + first * 2, stride, depth, to, kernels::widen_f16);
  } else {
    widen_line<uint8_t>(data + first, stride, depth, to, kernels::E4m3::decode);
  }
}

float scale_at(const MatrixPart& part, uint64_t row, uint64_t column) {
  float scale;
  const uint64_t index = row / kScaleBlock * part.scales->shape[1] + column / kScaleBlock;
  std::memcpy(&scale, part.scales->bytes.data() + index * sizeof(scale), sizeof(scale));
  return scale;
}

}  // namespace

Status tensor_error(StatusCode code, const Tensor& tensor, const std::string& what) {
  return Status(code, tensor.file + ": tensor " + tensor.name + ": " + what);
}

Result<const Tensor*> TensorReader::get(const std::string& name,
                                        const std::vector<uint64_t>& shape) {
  const Tensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    return Status(StatusCode::kInvalidArgument, checkpoint_.directory() + ": tensor " + name +
                                                    " of shape " + shape_string(shape) +
                                                    " is missing");
  }
  if (tensor->shape != shape) {
    return tensor_error(StatusCode::kInvalidArgument, *tensor,
                        "has shape " + shape_string(tensor->shape) + ", but config.json asks for " +
                            shape_string(shape));
  }
  used_.insert(name);
  return tensor;
}

Result<MatrixPart> TensorReader::matrix(const std::string& name, uint64_t outputs, uint64_t depth) {
  auto tensor = get(name, {outputs, depth});
  if (!tensor.ok()) return tensor.status();
  const std::string& dtype = tensor.value()->dtype;
  MatrixPart part{.tensor = tensor.value(), .num_outputs = static_cast<uint32_t>(outputs)};
  if (dtype == "F32" || dtype == "BF16" || dtype == "F16") return part;
  if (dtype != "F8_E4M3") {
    return tensor_error(StatusCode::kUnimplemented, *part.tensor,
                        "dtype " + dtype + " is not supported; F32, BF16, F16 and F8_E4M3 are");
  }
  if (!takes_fp8_) {
    return tensor_error(StatusCode::kInvalidArgument, *part.tensor,
                        "is F8_E4M3, but config.json has no quantization_config of fp8 with "
                        "weight_block_size [128, 128]");
  }
  auto scales = get(name + "_scale_inv", {(outputs + kScaleBlock - 1) / kScaleBlock,
                                          (depth + kScaleBlock - 1) / kScaleBlock});
  if (!scales.ok()) return scales.status();
  part.scales = scales.value();
  if (part.scales->dtype != "F32") {
    return tensor_error(StatusCode::kUnimplemented, *part.scales,
                        "dtype " + part.scales->dtype + " is not supported; scales are F32");
  }
  return part;
}

Status TensorReader::vector(const std::string& name, uint64_t size, std::vector<float>& to) {
  auto tensor = get(name, {size});
  if (!tensor.ok()) return tensor.status();
  const std::string& dtype = tensor.value()->dtype;
  if (dtype != "F32" && dtype != "BF16" && dtype != "F16") {
    return tensor_error(StatusCode::kUnimplemented, *tensor.value(),
                        "dtype " + dtype + " is not supported; F32, BF16 and F16 are");
  }
  to.resize(to.size() + size);
  widen_elements(*tensor.value(), 0, 1, static_cast<uint32_t>(size), to.data() + to.size() - size);
  return {};
}

bool TensorReader::predicts_further(const std::string& name, uint32_t num_layers) const {
  const std::string prefix = "model.layers." + std::to_string(num_layers) + ".";
  return name.starts_with(prefix) && checkpoint_.find(prefix + "eh_proj.weight") != nullptr;
}

Status TensorReader::check_all_used(const std::string& architecture, uint32_t num_layers,
                                    const Tensor& embedding) const {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (used_.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    if (predicts_further(name, num_layers)) continue;
    const bool copy_of_embedding = name == "lm_head.weight" && tensor.shape == embedding.shape &&
                                   std::ranges::equal(tensor.bytes, embedding.bytes);
    if (copy_of_embedding) continue;
    return tensor_error(StatusCode::kUnimplemented, tensor,
                        "is not part of a " + architecture + " of this config.json");
  }
  return {};
}

void widen_output(const MatrixPart& part, uint32_t output, uint32_t depth, float* to) {
  const uint64_t columns = part.tensor->shape[1];
  const uint64_t row = part.transposed ? part.first_row : part.first_row + output;
  const uint64_t column = part.transposed ? output : 0;
  widen_elements(*part.tensor, row * columns + column, part.transposed ? columns : 1, depth, to);
  if (part.scales == nullptr) return;
  for (uint32_t k = 0; k < depth; ++k) {
    to[k] *= part.transposed ? scale_at(part, row + k, column) : scale_at(part, row, k);
  }
}

void copy_scales(const MatrixPart& part, uint32_t output, uint32_t depth, float* to) {
  assert(part.scales != nullptr && !part.transposed);
  for (uint32_t k = 0; k < depth; k += kScaleBlock) {
    to[k / kScaleBlock] = scale_at(part, part.first_row + output, k);
  }
}

}  // namespace crossdock
