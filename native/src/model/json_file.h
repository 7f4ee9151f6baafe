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
};

}  // namespace crossdock
