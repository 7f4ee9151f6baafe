// Packed weights on disk, so that the next start reads them instead of quantising again.
//
// A file is a header and the arena as it lies in memory. The header says which model (fingerprint),
// which matrices in which formats at which offsets, and how the kernels order a panel; and it has a
// checksum over the arena. Whatever does not agree is as good as absent: the weights are packed
// again and the file is replaced.
#pragma once

#include <string>
#include <vector>

#include "crossdock/sys/file_cache.h"
#include "matrix_plan.h"

namespace crossdock {

class PackedCache {
 public:
  PackedCache(const std::string& directory, const Fingerprint& model,
              const std::vector<MatrixPlan>& plans, size_t arena_bytes);

  std::string path() const { return files_.path(name_); }
  // Reads the weights into the arena. NOT_FOUND: there are none; DATA_LOSS: the file is damaged or
  // of another version, and the arena holds nothing of use.
  Status read(std::byte* arena, ThreadPool& pool) const;
  Status write(std::byte* arena, ThreadPool& pool) const;

 private:
  const FileCache files_;
  const size_t arena_bytes_;
  std::string name_;
  std::vector<std::byte> identity_;  // the header up to its checksum
};

}  // namespace crossdock
