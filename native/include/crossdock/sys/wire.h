// The byte codec of everything that crosses a ring or the handoff channel: little-endian integers,
// length-prefixed strings and arrays. A Reader never reads past its span: the first bad field
// makes it fail for good, so a message is checked once, after its last field.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace crossdock {

static_assert(std::endian::native == std::endian::little, "crossdock runs on little-endian hosts");

template <typename T>
concept WireScalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class WireWriter {
 public:
  void reserve(size_t num_bytes) { bytes_.reserve(num_bytes); }
  template <WireScalar T>
  void put(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof(T));
  }
  void put_raw(std::span<const std::byte> raw) {
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    put_raw(std::as_bytes(std::span(text)));
  }
  void put(const std::string& text) { put(std::string_view(text)); }
  template <WireScalar T>
  void put(std::span<const T> values) {
    put(static_cast<uint32_t>(values.size()));
    put_raw(std::as_bytes(values));
  }
  template <WireScalar T>
  void put(const std::vector<T>& values) {
    put(std::span<const T>(values));
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <WireScalar T>
  T get() {
    T value{};
    if (!has(sizeof(T))) return value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> get_raw(size_t n) {
    if (!has(n)) return {};
    auto raw = rest_.first(n);
    rest_ = rest_.subspan(n);
    return raw;
  }
  std::string get_string() {
    auto raw = get_raw(get<uint32_t>());
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  template <WireScalar T>
  std::vector<T> get_vector() {
    const size_t n = get<uint32_t>();
    // The count is checked against what is really there before anything is allocated.
    if (failed_ || n > rest_.size() / sizeof(T)) return (failed_ = true, std::vector<T>{});
    std::vector<T> values(n);
    if (n != 0) std::memcpy(values.data(), rest_.data(), n * sizeof(T));
    rest_ = rest_.subspan(n * sizeof(T));
    return values;
  }

  size_t remaining() const { return rest_.size(); }
  bool failed() const { return failed_; }
  void fail() { failed_ = true; }  // for checks that only the caller can make
  // True when every field was present and no byte is left over.
  bool done() const { return !failed_ && rest_.empty(); }

 private:
  bool has(size_t n) {
    if (failed_ || rest_.size() < n) failed_ = true;
    return !failed_;
  }

  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace crossdock
