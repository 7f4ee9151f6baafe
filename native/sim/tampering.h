// What a broken or hostile peer does to the messages it sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "node.h"
#include "random.h"

namespace crossdock::sim {

enum class TamperKind : uint8_t {
  kDrop,
  kDuplicate,
  kTruncate,
  kForge,  // one more, which the source never sent, without the pair's key
  kDelay,
  kIncarnation,
  kAttempt,
  kReplay
};

struct Tampering {
  TamperKind kind = TamperKind::kDrop;
  std::string message;  // "any", "commit", ...
};

class Tamperings {
 public:
  // The next `count` messages of that kind; or as many of it forged, each beside a message of
  // whatever kind. False for unknown words.
  bool add(EngineId source, std::string_view how, std::string_view message, uint32_t count);
  // What is to be done with this message, taken off the list.
  std::optional<Tampering> take(EngineId source, std::span<const std::byte> message);

 private:
  struct Entry {
    Tampering tampering;
    uint32_t count = 0;
  };
  std::map<EngineId, std::deque<Entry>> entries_;
};

// The message as it is left, or the one that is forged about the same handoff; of drop, duplicate,
// delay and replay unchanged.
std::vector<std::byte> tampered(const Tampering& tampering, std::span<const std::byte> message,
                                Random& random);

}  // namespace crossdock::sim
