// Tensors of a checkpoint by name, checked against what the model asks for.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "safetensors.h"

namespace crossdock {

inline constexpr uint64_t kScaleBlock =
    128;  // rows and columns that share a scale of an FP8 tensor

// Some outputs of a packed matrix, as a checkpoint has them.
struct MatrixPart {
  const Tensor* tensor = nullptr;
  const Tensor* scales = nullptr;  // of an FP8 tensor: f32 [ceil(rows / 128)][ceil(columns / 128)]
  uint64_t first_row = 0;          // of the tensor
  uint32_t num_outputs = 0;
  bool transposed = false;  // outputs are the tensor's columns; first_row is where the depth begins
};

class TensorReader {
 public:
  // `takes_fp8`: config.json says that FP8 tensors carry block scales.
  TensorReader(const Checkpoint& checkpoint, bool takes_fp8)
      : checkpoint_(checkpoint), takes_fp8_(takes_fp8) {}

  // All rows of a matrix. The error names file and tensor, what was expected and what was found.
  Result<MatrixPart> matrix(const std::string& name, uint64_t outputs, uint64_t depth);
  // A vector, widened to f32 and appended.
  Status vector(const std::string& name, uint64_t size, std::vector<float>& to);
  // A tensor that nobody asked for would be ignored weights: a bias, an adapter, another model.
  // Passed over knowingly are copies of a tied embedding, the frequencies that old checkpoints
  // carry, and the layers past the last that predict further tokens (DeepSeek-V3's MTP).
  Status check_all_used(const std::string& architecture, uint32_t num_layers,
                        const Tensor& embedding) const;

  const std::set<std::string>& used() const { return used_; }

 private:
  Result<const Tensor*> get(const std::string& name, const std::vector<uint64_t>& shape);
  bool predicts_further(const std::string& name, uint32_t num_layers) const;

  const Checkpoint& checkpoint_;
  const bool takes_fp8_;
  std::set<std::string> used_;
};

Status tensor_error(StatusCode code, const Tensor& tensor, const std::string& what);

// One output of the part as f32: `depth` weights, the block scale multiplied in.
void widen_output(const MatrixPart& part, uint32_t output, uint32_t depth, float* to);

// The scales of one output of an FP8 part, one a block of columns.
void copy_scales(const MatrixPart& part, uint32_t output, uint32_t depth, float* to);

}  // namespace crossdock
