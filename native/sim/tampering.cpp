#include "tampering.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <variant>

#include "crossdock/handoff/envelope.h"

namespace crossdock::sim {
namespace {

constexpr std::pair<std::string_view, TamperKind> kKinds[] = {
    {"drop", TamperKind::kDrop},         {"duplicate", TamperKind::kDuplicate},
    {"truncate", TamperKind::kTruncate}, {"forge", TamperKind::kForge},
    {"delay", TamperKind::kDelay},       {"incarnation", TamperKind::kIncarnation},
    {"attempt", TamperKind::kAttempt},   {"replay", TamperKind::kReplay}};

// As the alternatives of HandoffMessage.
constexpr std::array<std::string_view, std::variant_size_v<HandoffMessage>> kMessages = {
    "open", "grant", "refuse", "revoke", "commit", "ack", "nack", "aborted"};

Result<HandoffMessage> within(std::span<const std::byte> sealed) {
  return decode_handoff(sealed.first(sealed.size() - kSealBytes));
}

// What whoever lacks the key would want to be believed.
HandoffMessage forgery(const HandoffKey& key, size_t kind) {
  const HandoffMessage all[] = {Open{key, kBlockTokens},
                                GrantBlocks{key, 0, {0, 1, 2, 3}},
                                Refuse{key, StatusCode::kAborted},
                                Revoke{key},
                                Commit{key, 1, {ChoiceState{1, 0, 0}}, {}},
                                Ack{key},
                                Nack{key, StatusCode::kAborted},
                                Aborted{key}};
  static_assert(std::size(all) == kMessages.size());
  return all[kind];
}

std::vector<std::byte> forged(const std::string& name, const HandoffKey& key, Random& random) {
  const size_t kind = name == "any"
                          ? random.below(kMessages.size())
                          : std::find(kMessages.begin(), kMessages.end(), name) - kMessages.begin();
  std::vector<std::byte> bytes = encode(forgery(key, kind));
  for (size_t i = 0; i < kSealBytes; ++i) bytes.push_back(std::byte(random.below(256)));
  return bytes;
}

// With another key in it, under the seal that it had.
std::vector<std::byte> renamed(HandoffMessage message, const HandoffKey& key,
                               std::span<const std::byte> sealed) {
  std::visit([&key](auto& concrete) { concrete.key = key; }, message);
  std::vector<std::byte> bytes = encode(message);
  const auto seal = sealed.last(kSealBytes);
  bytes.insert(bytes.end(), seal.begin(), seal.end());
  return bytes;
}

}  // namespace

bool Tamperings::add(EngineId source, std::string_view how, std::string_view message,
                     uint32_t count) {
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [how](const auto& entry) { return entry.first == how; });
  const bool known =
      message == "any" || std::find(kMessages.begin(), kMessages.end(), message) != kMessages.end();
  if (kind == std::end(kKinds) || !known) return false;
  entries_[source].push_back({{kind->second, std::string(message)}, count});
  return true;
}

std::optional<Tampering> Tamperings::take(EngineId source, std::span<const std::byte> message) {
  const auto found = entries_.find(source);
  if (found == entries_.end()) return std::nullopt;
  const auto decoded = within(message);
  if (!decoded.ok()) return std::nullopt;
  const std::string_view name = kMessages[decoded.value().index()];
  std::deque<Entry>& entries = found->second;
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    const Tampering tampering = entry->tampering;
    const bool concerned = tampering.message == "any" || tampering.message == name ||
                           tampering.kind == TamperKind::kForge;
    if (!concerned) continue;
    if (--entry->count == 0) entries.erase(entry);
    return tampering;
  }
  return std::nullopt;
}

std::vector<std::byte> tampered(const Tampering& tampering, std::span<const std::byte> message,
                                Random& random) {
  std::vector<std::byte> bytes(message.begin(), message.end());
  const auto decoded = within(message);
  HandoffKey key = key_of(decoded.value());
  switch (tampering.kind) {
    case TamperKind::kTruncate: bytes.resize(random.below(bytes.size())); return bytes;
    case TamperKind::kForge: return forged(tampering.message, key, random);
    case TamperKind::kIncarnation:
      key.incarnation ^= 1 + random.below(1u << 20);
      return renamed(decoded.value(), key, message);
    case TamperKind::kAttempt: key.attempt += 1; return renamed(decoded.value(), key, message);
    case TamperKind::kDrop:
    case TamperKind::kDuplicate:
    case TamperKind::kDelay:
    case TamperKind::kReplay: break;
  }
  return bytes;
}

}  // namespace crossdock::sim
