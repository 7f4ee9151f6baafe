#include "crossdock/engine/messages.h"

#include <string>
#include <type_traits>

#include "crossdock/sys/wire.h"

namespace crossdock::link {
namespace {

template <typename T>
concept Message = requires(const T& message) { message.fields(); };

template <typename T>
void write(WireWriter& out, const T& value) {
  if constexpr (Message<T>) {
    std::apply([&out](const auto&... field) { (write(out, field), ...); }, value.fields());
  } else if constexpr (std::is_same_v<T, bool>) {
    out.put(static_cast<uint8_t>(value));
  } else if constexpr (WireScalar<T> || std::is_same_v<T, std::string>) {
    out.put(value);
  } else if constexpr (WireScalar<typename T::value_type>) {
    out.put(value);
  } else {
    out.put(static_cast<uint32_t>(value.size()));
    for (const auto& element : value) write(out, element);
  }
}

template <typename T>
void read(WireReader& in, T& value) {
  if constexpr (Message<T>) {
    std::apply([&in](auto&... field) { (read(in, field), ...); }, value.fields());
  } else if constexpr (std::is_same_v<T, bool>) {
    value = in.get<uint8_t>() != 0;
  } else if constexpr (WireScalar<T>) {
    value = in.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = in.get_string();
  } else if constexpr (WireScalar<typename T::value_type>) {
    value = in.get_vector<typename T::value_type>();
  } else {
    const uint32_t count = in.get<uint32_t>();
    // An element takes at least one byte, so a count beyond the rest is refused unallocated.
    if (in.failed() || count > in.remaining()) return in.fail();
    value.resize(count);
    for (auto& element : value) read(in, element);
  }
}

template <typename Variant>
std::vector<std::byte> encode_variant(const Variant& message) {
  WireWriter out;
  out.put(static_cast<uint8_t>(message.index()));
  std::visit([&out](const auto& m) { write(out, m); }, message);
  return out.take();
}

template <typename Variant, size_t... Index>
bool read_alternative(WireReader& in, size_t index, Variant& message,
                      std::index_sequence<Index...>) {
  return ((index == Index ? (read(in, message.template emplace<Index>()), true) : false) || ...);
}

template <typename Variant>
Result<Variant> decode_variant(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const size_t index = in.get<uint8_t>();
  Variant message;
  const bool known = read_alternative(in, index, message,
                                      std::make_index_sequence<std::variant_size_v<Variant>>{});
  if (!known || !in.done()) {
    return Status(StatusCode::kDataLoss, "malformed message of kind " + std::to_string(index));
  }
  return message;
}

}  // namespace

std::vector<std::byte> encode(const Command& command) { return encode_variant(command); }
std::vector<std::byte> encode(const Event& event) { return encode_variant(event); }
Result<Command> decode_command(std::span<const std::byte> bytes) {
  return decode_variant<Command>(bytes);
}
Result<Event> decode_event(std::span<const std::byte> bytes) {
  return decode_variant<Event>(bytes);
}

}  // namespace crossdock::link
