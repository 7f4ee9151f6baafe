#include "crossdock/handoff/envelope.h"

#include <sodium.h>

#include <cassert>
#include <cstring>
#include <utility>

namespace crossdock {
namespace {

using Mac = std::array<std::byte, kSealBytes>;

Mac mac_of(std::span<const std::byte> bytes, const PairKey& key, uint64_t sender_epoch) {
  // The personalisation keeps this use of the pair's key apart from every other.
  static constexpr unsigned char kPersonal[crypto_generichash_blake2b_PERSONALBYTES + 1] =
      "crossdock-sealed";
  std::array<unsigned char, crypto_generichash_blake2b_SALTBYTES> salt{};
  std::memcpy(salt.data(), &sender_epoch, sizeof sender_epoch);
  Mac mac;
  [[maybe_unused]] const int rc = crypto_generichash_blake2b_salt_personal(
      reinterpret_cast<unsigned char*>(mac.data()), mac.size(),
      reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), key.data(), key.size(),
      salt.data(), kPersonal);
  assert(rc == 0);
  return mac;
}

}  // namespace

std::vector<std::byte> seal(std::vector<std::byte> message, const PairKey& key,
                            uint64_t sender_epoch) {
  const Mac mac = mac_of(message, key, sender_epoch);
  message.insert(message.end(), mac.begin(), mac.end());
  return message;
}

std::optional<std::span<const std::byte>> unseal(std::span<const std::byte> sealed,
                                                 const PairKey& key, uint64_t sender_epoch) {
  // What is longer than any message is not hashed for whoever made it.
  if (sealed.size() < kSealBytes || sealed.size() > kHandoffMessageBytesMax + kSealBytes) {
    return std::nullopt;
  }
  const auto message = sealed.first(sealed.size() - kSealBytes);
  const Mac expected = mac_of(message, key, sender_epoch);
  if (sodium_memcmp(expected.data(), sealed.last(kSealBytes).data(), kSealBytes) != 0) {
    return std::nullopt;
  }
  return message;
}

HandoffEvent receive(PairId pair, std::span<const std::byte> sealed, const PairKey& key,
                     uint64_t sender_epoch) {
  const auto bytes = unseal(sealed, key, sender_epoch);
  if (!bytes.has_value()) return handoff_event::Forged{pair};
  auto message = decode_handoff(*bytes);
  if (!message.ok()) return handoff_event::Malformed{pair, message.status()};
  return handoff_event::Arrived{pair, std::move(message).value()};
}

}  // namespace crossdock
