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

Result<JsonFile> JsonFile::object(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr || !value->is_object()) {
    return invalid(key,
                   value == nullptr ? "is missing" : "must be an object, not " + value->dump());
  }
  JsonFile inner(*value, path_);
  inner.prefix_ = prefix_ + key + ".";
  return inner;
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
  return Status(StatusCode::kInvalidArgument, path_ + ": " + prefix_ + key + " " + what);
}

Status JsonFile::unsupported(const std::string& key, const std::string& what) const {
  return Status(StatusCode::kUnimplemented, path_ + ": " + prefix_ + key + " " + what);
}

uint32_t JsonKeys::whole(const char* key, uint32_t min, uint32_t max) {
  auto value = file_.whole(key, min, max);
  if (!value.ok()) take(value.status());
  return value.ok() ? value.value() : min;
}

float JsonKeys::positive(const char* key) {
  auto value = file_.positive(key);
  if (!value.ok()) take(value.status());
  return value.ok() ? value.value() : 1.0f;
}

uint32_t JsonKeys::whole_or(const char* key, uint32_t min, uint32_t max, uint32_t fallback) {
  return file_.is_absent(key) ? fallback : whole(key, min, max);
}

float JsonKeys::positive_or(const char* key, float fallback) {
  return file_.is_absent(key) ? fallback : positive(key);
}

bool JsonKeys::boolean_or(const char* key, bool fallback) {
  if (file_.is_absent(key)) return fallback;
  const auto& value = *file_.find(key);
  require(value.is_boolean(), key, "must be true or false, not " + value.dump());
  return value.is_boolean() && value.get<bool>();
}

std::string JsonKeys::text_or(const char* key, const char* fallback) {
  if (file_.is_absent(key)) return fallback;
  const auto& value = *file_.find(key);
  require(value.is_string(), key, "must be a text, not " + value.dump());
  return value.is_string() ? value.get<std::string>() : fallback;
}

void JsonKeys::require(bool holds, const std::string& key, const std::string& what) {
  if (!holds) take(file_.invalid(key, what));
}

void JsonKeys::support(bool holds, const std::string& key, const std::string& what) {
  if (!holds) take(file_.unsupported(key, what));
}

void JsonKeys::take(const Status& status) {
  if (status_.ok()) status_ = status;
}

}  // namespace crossdock
