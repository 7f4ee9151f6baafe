// JSON read from a file, its values fetched with errors that name the file and the key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

class JsonFile {
 public:
  // NOT_FOUND or INVALID_ARGUMENT; the file must hold one object.
  static Result<JsonFile> read(const std::string& path);
  // The same over text that some other file holds; `path` only names it in errors.
  static Result<JsonFile> parse(std::string_view text, std::string path);

  const std::string& path() const { return path_; }
  const nlohmann::json& root() const { return root_; }
  // Null when absent.
  const nlohmann::json* find(const char* key) const;
  bool is_absent(const char* key) const;  // or null
  // The object under a key, whose own keys errors name as "key.inner".
  Result<JsonFile> object(const char* key) const;

  // A whole number in [min, max].
  Result<uint32_t> whole(const char* key, uint32_t min, uint32_t max) const;
  Result<float> positive(const char* key) const;
  // INVALID_ARGUMENT naming the key.
  Status invalid(const std::string& key, const std::string& what) const;
  // UNIMPLEMENTED naming the key and its value.
  Status unsupported(const std::string& key, const std::string& what) const;

 private:
  JsonFile(nlohmann::json root, std::string path)
      : root_(std::move(root)), path_(std::move(path)) {}

  nlohmann::json root_;
  std::string path_;
  std::string prefix_;  // of keys in errors
};

// Reads one key after another and keeps the first error, so that what reads a configuration is a
// list of keys. A value at fault comes back as one that is in range.
class JsonKeys {
 public:
  explicit JsonKeys(const JsonFile& file) : file_(file) {}

  const JsonFile& file() const { return file_; }
  const Status& status() const { return status_; }
  uint32_t whole(const char* key, uint32_t min, uint32_t max);
  float positive(const char* key);
  // The fallback where the key is absent or null.
  uint32_t whole_or(const char* key, uint32_t min, uint32_t max, uint32_t fallback);
  float positive_or(const char* key, float fallback);
  bool boolean_or(const char* key, bool fallback);
  std::string text_or(const char* key, const char* fallback);
  // The first that does not hold is the error: INVALID_ARGUMENT, UNIMPLEMENTED.
  void require(bool holds, const std::string& key, const std::string& what);
  void support(bool holds, const std::string& key, const std::string& what);
  void take(const Status& status);

 private:
  const JsonFile& file_;
  Status status_;
};

}  // namespace crossdock
