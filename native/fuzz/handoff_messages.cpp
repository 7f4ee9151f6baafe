// Feeds decode_handoff random bytes and mutations of real messages. A message either parses and
// encodes to the same bytes again, or is refused; nothing else may happen (run it under ASan and
// UBSan). Sealed, it is let in as it is and in no other form.
// Usage: handoff_messages_fuzz [rounds] [seed]
#include <cstdio>
#include <cstdlib>
#include <random>

#include "crossdock/handoff/envelope.h"

namespace crossdock {
namespace {

using Bytes = std::vector<std::byte>;

class Fuzz {
 public:
  explicit Fuzz(uint64_t seed) : random_(seed) {}

  Bytes random_bytes() {
    Bytes bytes(pick(4) == 0 ? pick(2000) : pick(80));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_());
    if (bytes.size() > 1 && pick(2) == 0) {
      bytes[0] = std::byte{kHandoffVersion};
      bytes[1] = static_cast<std::byte>(pick(9));
    }
    return bytes;
  }

  HandoffMessage random_message() {
    const HandoffKey key{{random_(), random_()}, static_cast<uint32_t>(random_()), random_()};
    const auto small = static_cast<uint32_t>(pick(20));
    switch (pick(8)) {
      case 0: return Open{key, static_cast<uint32_t>(random_())};
      case 1: {
        GrantBlocks grant{key, small, {}};
        for (uint64_t i = pick(50); i > 0; --i) grant.blocks.push_back(BlockId(random_()));
        return grant;
      }
      case 2: return Refuse{key, StatusCode::kResourceExhausted};
      case 3: return Revoke{key};
      case 4: {
        Commit commit{key, small, {}, {}};
        for (uint64_t i = pick(5); i > 0; --i) {
          commit.choices.push_back({static_cast<int32_t>(random_()), random_(), random_()});
        }
        for (uint8_t& b : commit.checksum) b = static_cast<uint8_t>(random_());
        return commit;
      }
      case 5: return Ack{key};
      case 6: return Nack{key, StatusCode::kDataLoss};
      default: return Aborted{key};
    }
  }

  Bytes mutated(Bytes bytes) {
    for (uint64_t i = 1 + pick(3); i > 0; --i) {
      switch (pick(5)) {
        case 0:
          if (!bytes.empty()) bytes[pick(bytes.size())] ^= static_cast<std::byte>(1 << pick(8));
          break;
        case 1: bytes.resize(pick(bytes.size() + 1)); break;
        case 2: bytes.insert(bytes.end(), 1 + pick(8), static_cast<std::byte>(random_())); break;
        case 3:  // a length field of the largest kind
          if (bytes.size() > 4) {
            const size_t at = pick(bytes.size() - 4);
            for (size_t k = 0; k < 4; ++k) bytes[at + k] = std::byte{0xFF};
          }
          break;
        default:
          if (bytes.size() > 1) bytes[pick(2)] = static_cast<std::byte>(random_());
      }
    }
    return bytes;
  }

  uint64_t pick(uint64_t n) { return random_() % n; }

 private:
  std::mt19937_64 random_;
};

bool holds(const Bytes& bytes, bool must_parse) {
  const auto message = decode_handoff(bytes);
  if (!message.ok()) {
    return !must_parse && message.status().code() == StatusCode::kInvalidArgument;
  }
  return encode(message.value()) == bytes;
}

constexpr PairKey kKey{1, 2, 3};
constexpr uint64_t kSender = 7;

bool lets_in(const Bytes& sealed) {
  return !std::holds_alternative<handoff_event::Forged>(receive(1, sealed, kKey, kSender));
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 200'000;
  const auto seed = static_cast<uint64_t>(argc > 2 ? std::atoll(argv[2]) : 1);
  crossdock::Fuzz fuzz(seed);
  long parsed = 0;
  for (long round = 0; round < rounds; ++round) {
    const auto real = crossdock::encode(fuzz.random_message());
    const auto changed = fuzz.mutated(real);
    const auto noise = fuzz.random_bytes();
    const auto sealed = crossdock::seal(real, crossdock::kKey, crossdock::kSender);
    const auto other = fuzz.mutated(sealed);
    const bool decodes = crossdock::holds(real, true) && crossdock::holds(changed, false) &&
                         crossdock::holds(noise, false);
    const bool seals = crossdock::lets_in(sealed) && !crossdock::lets_in(noise) &&
                       crossdock::lets_in(other) == (other == sealed);
    if (!decodes || !seals) {
      std::fprintf(stderr, "%s broke its promise in round %ld of seed %llu\n",
                   decodes ? "the seal" : "decode_handoff", round,
                   static_cast<unsigned long long>(seed));
      return 1;
    }
    parsed += crossdock::decode_handoff(changed).ok() ? 1 : 0;
  }
  // Some mutations must get past the first checks, or this drives nothing.
  std::printf("%ld rounds, %ld mutations parsed\n", rounds, parsed);
  return parsed * 20 > rounds ? 0 : 1;
}
