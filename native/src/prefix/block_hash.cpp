#include "crossdock/prefix/block_hash.h"

#include <sodium.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

static_assert(sizeof(BlockHash) == 16);
constexpr size_t kSaltBytesMax = 64;               // BLAKE2b's longest key
constexpr char kPersonal[16] = "crossdock-block";  // 15 letters; a number follows them
static_assert(crypto_generichash_blake2b_PERSONALBYTES == 16);
static_assert(crypto_generichash_blake2b_SALTBYTES == sizeof(BlockHash));

// The root's fields are (tag, length, bytes), so that no two lists of fields share an encoding.
enum class FieldTag : uint8_t { kModel = 1, kAdapter = 2, kNumericsId = 3 };

BlockHash from_bytes(const unsigned char* bytes) {
  BlockHash hash;
  std::memcpy(&hash.low, bytes, 8);
  std::memcpy(&hash.high, bytes + 8, 8);
  return hash;
}

}  // namespace

BlockHash root_hash(std::string_view tenant_salt, const Fingerprint& model,
                    std::string_view adapter, std::string_view numerics_id) {
  assert(tenant_salt.size() <= kSaltBytesMax);
  WireWriter fields;
  fields.put(FieldTag::kModel);
  fields.put(static_cast<uint32_t>(model.size()));
  fields.put_raw(std::as_bytes(std::span(model)));
  fields.put(FieldTag::kAdapter);
  fields.put(adapter);
  fields.put(FieldTag::kNumericsId);
  fields.put(numerics_id);
  const auto bytes = fields.bytes();
  unsigned char out[sizeof(BlockHash)];
  // An empty salt is an unkeyed hash; libsodium takes no key below its minimum only through the
  // length 0, and every other length up to 64 is a key of its own.
  const int failed = crypto_generichash_blake2b(
      out, sizeof(out), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
      tenant_salt.empty() ? nullptr : reinterpret_cast<const unsigned char*>(tenant_salt.data()),
      tenant_salt.size());
  assert(failed == 0);
  static_cast<void>(failed);
  return from_bytes(out);
}

BlockHash next_hash(const BlockHash& parent, std::span<const int32_t> tokens,
                    uint32_t num_generated) {
  assert(tokens.size() == kBlockTokens && num_generated <= kBlockTokens);
  unsigned char personal[crypto_generichash_blake2b_PERSONALBYTES];
  std::memcpy(personal, kPersonal, sizeof(personal) - 1);
  personal[sizeof(personal) - 1] = static_cast<unsigned char>(num_generated);
  unsigned char out[sizeof(BlockHash)];
  const int failed = crypto_generichash_blake2b_salt_personal(
      out, sizeof(out), reinterpret_cast<const unsigned char*>(tokens.data()), tokens.size_bytes(),
      nullptr, 0, reinterpret_cast<const unsigned char*>(&parent), personal);
  assert(failed == 0);
  static_cast<void>(failed);
  return from_bytes(out);
}

void extend_chain(const BlockHash& root, std::span<const int32_t> tokens, uint32_t first_generated,
                  std::vector<BlockHash>& chain) {
  const size_t num_whole = tokens.size() / kBlockTokens;
  BlockHash parent = chain.empty() ? root : chain.back();
  for (size_t i = chain.size(); i < num_whole; ++i) {
    const size_t end = (i + 1) * kBlockTokens;
    const size_t num_generated = end - std::clamp<size_t>(first_generated, end - kBlockTokens, end);
    parent = next_hash(parent, tokens.subspan(i * kBlockTokens, kBlockTokens),
                       static_cast<uint32_t>(num_generated));
    chain.push_back(parent);
  }
}

}  // namespace crossdock
