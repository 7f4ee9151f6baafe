// Weights as Hugging Face stores them: one model.safetensors, or shards named by
// model.safetensors.index.json, mapped and checked before any byte is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "crossdock/sys/mapped_file.h"
#include "crossdock/sys/status.h"

namespace crossdock {

struct Tensor {
  std::string name;
  std::string dtype;  // as the file spells it: "F32", "BF16", ...
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;  // size = shape * element size, inside the file
  std::string file;
};

std::string shape_string(std::span<const uint64_t> shape);

class Checkpoint {
 public:
  // Errors name the file, and the tensor where there is one, with what was expected and found.
  static Result<Checkpoint> open(const std::string& directory);

  // Null when the checkpoint has no such tensor.
  const Tensor* find(const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& directory() const { return directory_; }

 private:
  Status add_file(const std::string& path);
  Status open_shards();

  std::string directory_;
  std::vector<MappedFile> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace crossdock
