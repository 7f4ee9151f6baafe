#include "safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "json_file.h"

namespace crossdock {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own bound

struct ElementSize {
  const char* dtype;
  uint64_t size_bytes;
};
// Every dtype of the format whose size is whole bytes; which of them we compute with is the
// executor's question.
constexpr ElementSize kElementSizes[] = {{"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1},
                                         {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
                                         {"BF16", 2},    {"I32", 4}, {"U32", 4}, {"F32", 4},
                                         {"I64", 8},     {"U64", 8}, {"F64", 8}};

Status malformed(const std::string& file, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, file + ": " + what);
}

Status malformed_tensor(const std::string& file, const std::string& tensor,
                        const std::string& what) {
  return malformed(file, "tensor " + tensor + ": " + what);
}

struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Fills dtype, shape and the extent in the data section of one header entry.
Status read_entry(const nlohmann::json& entry, Tensor& tensor, Extent& extent) {
  const auto fail = [&](const std::string& what) {
    return malformed_tensor(tensor.file, tensor.name, what);
  };
  if (!entry.is_object()) return fail("its header entry is not an object");
  const auto dtype = entry.find("dtype");
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return fail("dtype is not a string");
  if (shape == entry.end() || !shape->is_array()) return fail("shape is not a list");
  const bool pair = offsets != entry.end() && offsets->is_array() && offsets->size() == 2 &&
                    (*offsets)[0].is_number_unsigned() && (*offsets)[1].is_number_unsigned();
  if (!pair) return fail("data_offsets is not a pair of offsets");
  tensor.dtype = dtype->get<std::string>();
  extent = {(*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>()};

  uint64_t size = 0;
  for (const auto& known : kElementSizes) {
    if (tensor.dtype == known.dtype) size = known.size_bytes;
  }
  if (size == 0) return fail("unknown dtype " + tensor.dtype);
  for (const auto& dimension : *shape) {
    if (!dimension.is_number_unsigned()) return fail("shape holds " + dimension.dump());
    tensor.shape.push_back(dimension.get<uint64_t>());
    if (__builtin_mul_overflow(size, tensor.shape.back(), &size)) return fail("shape overflows");
  }
  if (extent.end < extent.begin || extent.end - extent.begin != size) {
    return fail("data_offsets [" + std::to_string(extent.begin) + ", " +
                std::to_string(extent.end) + ") do not hold " + std::to_string(size) +
                " bytes, which " + tensor.dtype + " " + shape_string(tensor.shape) + " takes");
  }
  return {};
}

// Tensors must tile the data section: neither overlap nor gap, and nothing after the last.
Status check_tiling(const std::string& path, uint64_t data_bytes,
                    std::vector<std::pair<Extent, std::string>> extents) {
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  uint64_t next = 0;
  for (const auto& [extent, name] : extents) {
    if (extent.end > data_bytes) {
      return malformed_tensor(path, name,
                              "ends at byte " + std::to_string(extent.end) +
                                  " of the data, of which the file has " +
                                  std::to_string(data_bytes) + "; it is truncated: fetch it again");
    }
    if (extent.begin < next) return malformed_tensor(path, name, "overlaps another tensor");
    if (extent.begin > next) {
      return malformed_tensor(
          path, name,
          "leaves a gap of " + std::to_string(extent.begin - next) + " bytes before it");
    }
    next = extent.end;
  }
  if (next != data_bytes) {
    return malformed(path, std::to_string(data_bytes - next) + " bytes follow the last tensor");
  }
  return {};
}

}  // namespace

std::string shape_string(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  Status status = checkpoint.add_file(directory + "/model.safetensors");
  if (status.code() == StatusCode::kNotFound) status = checkpoint.open_shards();
  if (!status.ok()) return status;
  return checkpoint;
}

const Tensor* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Status Checkpoint::add_file(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const auto bytes = file.value().bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return malformed(path, "has " + std::to_string(bytes.size()) + " bytes, no header");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t rest = bytes.size() - sizeof(header_bytes);
  if (header_bytes > rest || header_bytes > kHeaderBytesMax) {
    return malformed(path, "its header of " + std::to_string(header_bytes) +
                               " bytes is longer than the file or than " +
                               std::to_string(kHeaderBytesMax));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes),
                              header_bytes);
  auto header = JsonFile::parse(text, path + " (header)");
  if (!header.ok()) return header.status();
  const auto data = bytes.subspan(sizeof(header_bytes) + header_bytes);

  std::vector<std::pair<Extent, std::string>> extents;
  std::vector<Tensor> tensors;
  for (const auto& item : header.value().root().items()) {
    if (item.key() == "__metadata__") continue;
    Tensor tensor{.name = item.key(), .file = path};
    Extent extent;
    if (Status status = read_entry(item.value(), tensor, extent); !status.ok()) return status;
    extents.emplace_back(extent, tensor.name);
    tensors.push_back(std::move(tensor));
  }
  if (Status status = check_tiling(path, data.size(), extents); !status.ok()) return status;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Extent& extent = extents[i].first;
    tensors[i].bytes = data.subspan(extent.begin, extent.end - extent.begin);
    std::string name = tensors[i].name;
    const auto [it, added] = tensors_.emplace(name, std::move(tensors[i]));
    if (!added) return malformed_tensor(path, name, "is also in " + it->second.file);
  }
  files_.push_back(std::move(file).value());
  return {};
}

Status Checkpoint::open_shards() {
  const std::string index_path = directory_ + "/model.safetensors.index.json";
  auto index = JsonFile::read(index_path);
  if (!index.ok()) {
    if (index.status().code() != StatusCode::kNotFound) return index.status();
    return Status(StatusCode::kNotFound,
                  directory_ + ": has neither model.safetensors nor model.safetensors.index.json");
  }
  const auto* map = index.value().find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return index.value().invalid("weight_map", "is not an object");
  }
  std::set<std::string> shards;
  for (const auto& item : map->items()) {
    const bool plain = item.value().is_string() && !item.value().get<std::string>().empty() &&
                       item.value().get<std::string>().find('/') == std::string::npos;
    if (!plain) return index.value().invalid("weight_map." + item.key(), "is not a file name");
    shards.insert(item.value().get<std::string>());
  }
  for (const auto& shard : shards) {
    if (Status status = add_file(directory_ + "/" + shard); !status.ok()) return status;
  }
  for (const auto& item : map->items()) {
    const auto* tensor = find(item.key());
    const std::string expected = directory_ + "/" + item.value().get<std::string>();
    if (tensor == nullptr || tensor->file != expected) {
      return malformed_tensor(expected, item.key(),
                              "is not in this file, though " + index_path + " says so");
    }
  }
  return {};
}

}  // namespace crossdock
