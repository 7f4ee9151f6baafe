// Every message is: version and kind (one byte each), key (id, attempt, incarnation), then its own
// fields. All counts are bounded here, before anything is allocated for them.
#include "crossdock/handoff/messages.h"

#include <cassert>
#include <cstdio>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

// The position in HandoffMessage is the kind on the wire, so a new message goes to the end.
template <typename Message>
constexpr uint8_t kind_of() {
  constexpr size_t index = HandoffMessage(Message{}).index();
  return static_cast<uint8_t>(index);
}
constexpr uint8_t kNumKinds = std::variant_size_v<HandoffMessage>;

// Of most messages, with their seal; a grant has its blocks besides.
constexpr size_t kUsualBytes = 128;

void put_key(WireWriter& writer, uint8_t kind, const HandoffKey& key) {
  writer.put(kHandoffVersion);
  writer.put(kind);
  writer.put(key.id.high);
  writer.put(key.id.low);
  writer.put(key.attempt);
  writer.put(key.incarnation);
}

HandoffKey get_key(WireReader& reader) {
  HandoffKey key;
  key.id.high = reader.get<uint64_t>();
  key.id.low = reader.get<uint64_t>();
  key.attempt = reader.get<uint32_t>();
  key.incarnation = reader.get<uint64_t>();
  return key;
}

struct Encoder {
  WireWriter& writer;

  void operator()(const Open& open) const {
    put_key(writer, kind_of<Open>(), open.key);
    writer.put(open.num_prompt_tokens);
  }
  void operator()(const GrantBlocks& grant) const {
    assert(grant.blocks.size() <= kHandoffBlocksMax);
    put_key(writer, kind_of<GrantBlocks>(), grant.key);
    writer.put(grant.num_matched_blocks);
    writer.put(grant.blocks);
  }
  void operator()(const Refuse& refuse) const { put_reason(refuse); }
  void operator()(const Revoke& revoke) const { put_key(writer, kind_of<Revoke>(), revoke.key); }
  void operator()(const Commit& commit) const {
    assert(commit.choices.size() <= kHandoffChoicesMax);
    put_key(writer, kind_of<Commit>(), commit.key);
    writer.put(commit.num_blocks);
    writer.put(static_cast<uint32_t>(commit.choices.size()));
    for (const ChoiceState& choice : commit.choices) {
      writer.put(choice.first_token);
      writer.put(choice.digest_low);
      writer.put(choice.digest_high);
    }
    writer.put_raw(std::as_bytes(std::span(commit.checksum)));
  }
  void operator()(const Ack& ack) const { put_key(writer, kind_of<Ack>(), ack.key); }
  void operator()(const Nack& nack) const { put_reason(nack); }
  void operator()(const Aborted& aborted) const {
    put_key(writer, kind_of<Aborted>(), aborted.key);
  }

 private:
  template <typename Message>
  void put_reason(const Message& message) const {
    assert(message.reason != StatusCode::kOk && "a refusal has a reason");
    put_key(writer, kind_of<Message>(), message.key);
    writer.put(message.reason);
  }
};

Status malformed(const std::string& what) {
  return {StatusCode::kInvalidArgument, "handoff message: " + what};
}

template <typename Message>
Result<HandoffMessage> decode_reason(const HandoffKey& key, WireReader& reader) {
  const auto reason = reader.get<StatusCode>();
  if (!reader.done()) return malformed("wrong length");
  if (reason == StatusCode::kOk || name(reason) == "UNKNOWN") {
    return malformed("the reason is not an error code");
  }
  return HandoffMessage(Message{key, reason});
}

Result<HandoffMessage> decode_commit(const HandoffKey& key, WireReader& reader) {
  Commit commit{key, 0, {}, {}};
  commit.num_blocks = reader.get<uint32_t>();
  const auto num_choices = reader.get<uint32_t>();
  if (num_choices > kHandoffChoicesMax) return malformed("too many choices");
  if (commit.num_blocks > kHandoffBlocksMax) return malformed("too many blocks");
  for (uint32_t i = 0; i < num_choices && !reader.failed(); ++i) {
    ChoiceState choice;
    choice.first_token = reader.get<int32_t>();
    choice.digest_low = reader.get<uint64_t>();
    choice.digest_high = reader.get<uint64_t>();
    commit.choices.push_back(choice);
  }
  const auto checksum = reader.get_raw(commit.checksum.size());
  if (!checksum.empty()) std::memcpy(commit.checksum.data(), checksum.data(), checksum.size());
  if (!reader.done()) return malformed("wrong length");
  return HandoffMessage(std::move(commit));
}

}  // namespace

std::string to_string(const HandoffId& id) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(id.high),
                static_cast<unsigned long long>(id.low));
  return text;
}

std::vector<std::byte> encode(const HandoffMessage& message) {
  WireWriter writer;
  const auto* grant = std::get_if<GrantBlocks>(&message);
  writer.reserve(kUsualBytes + (grant != nullptr ? grant->blocks.size() * sizeof(BlockId) : 0));
  std::visit(Encoder{writer}, message);
  return writer.take();
}

Result<HandoffMessage> decode_handoff(std::span<const std::byte> bytes) {
  if (bytes.size() > kHandoffMessageBytesMax) return malformed("too long");
  WireReader reader(bytes);
  const auto version = reader.get<uint8_t>();
  if (!reader.failed() && version != kHandoffVersion) {
    return malformed("version " + std::to_string(version) + ", ours is " +
                     std::to_string(kHandoffVersion));
  }
  const auto kind = reader.get<uint8_t>();
  if (!reader.failed() && kind >= kNumKinds) return malformed("unknown kind");
  const HandoffKey key = get_key(reader);
  if (reader.failed()) return malformed("wrong length");
  if (kind == kind_of<Refuse>()) return decode_reason<Refuse>(key, reader);
  if (kind == kind_of<Nack>()) return decode_reason<Nack>(key, reader);
  if (kind == kind_of<Commit>()) return decode_commit(key, reader);

  HandoffMessage message;
  if (kind == kind_of<Open>()) {
    message = Open{key, reader.get<uint32_t>()};
  } else if (kind == kind_of<GrantBlocks>()) {
    GrantBlocks grant{key, reader.get<uint32_t>(), {}};
    const size_t num_blocks = reader.get<uint32_t>();
    if (num_blocks > kHandoffBlocksMax) return malformed("too many blocks");
    const auto raw = reader.get_raw(num_blocks * sizeof(BlockId));
    grant.blocks.resize(raw.size() / sizeof(BlockId));
    if (!raw.empty()) std::memcpy(grant.blocks.data(), raw.data(), raw.size());
    message = std::move(grant);
  } else if (kind == kind_of<Revoke>()) {
    message = Revoke{key};
  } else if (kind == kind_of<Ack>()) {
    message = Ack{key};
  } else {
    message = Aborted{key};
  }
  if (!reader.done()) return malformed("wrong length");
  return message;
}

const HandoffKey& key_of(const HandoffMessage& message) {
  return std::visit([](const auto& m) -> const HandoffKey& { return m.key; }, message);
}

}  // namespace crossdock
