#include "tampering.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <variant>

#include "crossdock/handoff/messages.h"

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

HandoffKey& mutable_key(HandoffMessage& message) {
  return std::visit([](auto& concrete) -> HandoffKey& { return concrete.key; }, message);
}

}  // namespace

bool Tamperings::add(EngineId source, std::string_view how, std::string_view message,
                     uint32_t count) {
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [how](const auto& entry) { return entry.first == how; });
  const bool known =
      message == "any" || std::find(kMessages.begin(), kMessages.end(), message) != kMessages.end();
  if (kind == std::end(kKinds) || !known) return false;
  entries_[source].push_back({kind->second, std::string(message), count});
  return true;
}

std::optional<TamperKind> Tamperings::take(EngineId source, std::span<const std::byte> message) {
  const auto found = entries_.find(source);
  if (found == entries_.end()) return std::nullopt;
  const auto decoded = decode_handoff(message);
  if (!decoded.ok()) return std::nullopt;
  const std::string_view name = kMessages[decoded.value().index()];
  std::deque<Entry>& entries = found->second;
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    if (entry->message != "any" && entry->message != name) continue;
    // A receiver that forges its own grant harms nobody but itself.
    if (entry->kind == TamperKind::kForge && name != "commit") continue;
    const TamperKind kind = entry->kind;
    if (--entry->count == 0) entries.erase(entry);
    return kind;
  }
  return std::nullopt;
}

std::vector<std::byte> tampered(TamperKind kind, std::span<const std::byte> message,
                                Random& random) {
  std::vector<std::byte> bytes(message.begin(), message.end());
  auto decoded = decode_handoff(message);
  switch (kind) {
    case TamperKind::kTruncate: bytes.resize(random.below(bytes.size())); return bytes;
    case TamperKind::kForge:
      // What whoever lacks the key would want: another first token.
      std::get<Commit>(decoded.value()).choices.front().first_token ^= 1;
      return encode(decoded.value());
    case TamperKind::kIncarnation:
      mutable_key(decoded.value()).incarnation ^= 1 + random.below(1u << 20);
      return encode(decoded.value());
    case TamperKind::kAttempt:
      mutable_key(decoded.value()).attempt += 1;
      return encode(decoded.value());
    case TamperKind::kDrop:
    case TamperKind::kDuplicate:
    case TamperKind::kDelay:
    case TamperKind::kReplay: break;
  }
  return bytes;
}

}  // namespace crossdock::sim
