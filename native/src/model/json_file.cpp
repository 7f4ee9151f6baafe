#include "json_file.h"

#include <cmath>

#include "crossdock/sys/mapped_file.h"

namespace crossdock {

Result<JsonFile> JsonFile::read(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const auto bytes = file.value().bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<JsonFile> JsonFile::parse(std::string_view text, std::string path) {
  auto root = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) {
    return Status(StatusCode::kInvalidArgument, path + ": is not a JSON object");
  }
  return JsonFile(std::move(root), std::move(path));
}

const nlohmann::json* JsonFile::find(const char* key) const {
  const auto it = root_.find(key);
  return it == root_.end() ? nullptr : &*it;
}

bool JsonFile::is_absent(const char* key) const {
  const auto* value = find(key);
  return value == nullptr || value->is_null();
}

Result<uint32_t> JsonFile::whole(const char* key, uint32_t min, uint32_t max) const {
  const std::string range =
      "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  const auto* value = find(key);
  if (value == nullptr) return invalid(key, "is missing; it " + range);
  if (!value->is_number_integer()) return invalid(key, range + ", not " + value->dump());
  const bool fits =
      value->is_number_unsigned() && value->get<uint64_t>() >= min && value->get<uint64_t>() <= max;
  if (!fits) return invalid(key, range + ", not " + value->dump());
  return value->get<uint32_t>();
}

Result<float> JsonFile::positive(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return invalid(key, "is missing; it must be a positive number");
  const float number = value->is_number() ? value->get<float>() : 0.0f;
  if (!(number > 0.0f) || !std::isfinite(number)) {
    return invalid(key, "must be a positive number, not " + value->dump());
  }
  return number;
}

Status JsonFile::invalid(const std::string& key, const std::string& what) const {
  return Status(StatusCode::kInvalidArgument, path_ + ": " + key + " " + what);
}

Status JsonFile::unsupported(const std::string& key, const std::string& what) const {
  return Status(StatusCode::kUnimplemented, path_ + ": " + key + " " + what);
}

}  // namespace crossdock
