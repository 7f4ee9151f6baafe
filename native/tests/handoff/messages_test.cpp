// The wire form of the handoff messages.
#include "crossdock/handoff/messages.h"

#include <gtest/gtest.h>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

constexpr HandoffKey kKey{{0x0102030405060708, 0x1112131415161718}, 3, 0x2122232425262728};

std::vector<HandoffMessage> one_of_each() {
  Commit commit{kKey, 5, {{-1, 2, 3}, {4, 5, 6}}, {}};
  commit.checksum.fill(7);
  return {Open{kKey, 99},
          GrantBlocks{kKey, 1, {7, 8, 9}},
          Refuse{kKey, StatusCode::kResourceExhausted},
          Revoke{kKey},
          commit,
          Ack{kKey},
          Nack{kKey, StatusCode::kDataLoss},
          Aborted{kKey}};
}

TEST(HandoffMessages, EachSurvivesTheWire) {
  const auto messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<HandoffMessage>);
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].index(), i) << "the position is the kind on the wire";
    const auto bytes = encode(messages[i]);
    EXPECT_EQ(bytes[0], std::byte{kHandoffVersion});
    EXPECT_EQ(bytes[1], static_cast<std::byte>(i));
    const auto back = decode_handoff(bytes);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(back.value().index(), i);
    EXPECT_EQ(key_of(back.value()), kKey);
    EXPECT_EQ(encode(back.value()), bytes);
  }
  const auto grant = std::get<GrantBlocks>(decode_handoff(encode(messages[1])).value());
  EXPECT_EQ(grant.num_matched_blocks, 1u);
  EXPECT_EQ(grant.blocks, (std::vector<BlockId>{7, 8, 9}));
  const auto commit = std::get<Commit>(decode_handoff(encode(messages[4])).value());
  EXPECT_EQ(commit.num_blocks, 5u);
  EXPECT_EQ(commit.choices[0].first_token, -1);
  EXPECT_EQ(commit.choices[1].digest_high, 6u);
  EXPECT_EQ(commit.checksum[15], 7);
}

TEST(HandoffMessages, EveryOtherLengthIsRefused) {
  for (const HandoffMessage& message : one_of_each()) {
    auto bytes = encode(message);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(decode_handoff(std::span(bytes).first(length)).ok());
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_handoff(bytes).ok());
  }
}

TEST(HandoffMessages, UnknownVersionsKindsAndReasonsAreRefused) {
  auto ack = encode(Ack{kKey});
  ack[1] = std::byte{8};
  EXPECT_FALSE(decode_handoff(ack).ok());
  auto newer = encode(Ack{kKey});
  newer[0] = std::byte{kHandoffVersion + 1};
  EXPECT_EQ(decode_handoff(newer).status().message(), "handoff message: version 2, ours is 1");
  for (const uint8_t reason : {0, 2, 7, 16, 255}) {
    auto nack = encode(Nack{kKey, StatusCode::kAborted});
    nack.back() = std::byte{reason};
    EXPECT_FALSE(decode_handoff(nack).ok()) << int{reason};
  }
}

TEST(HandoffMessages, CountsAreBoundedWhateverTheirLength) {
  auto bytes = encode(GrantBlocks{kKey, 0, {1}});
  // The count stands right before the one block.
  for (size_t i = 0; i < 4; ++i) bytes[bytes.size() - 8 + i] = std::byte{0xFF};
  EXPECT_FALSE(decode_handoff(bytes).ok());

  const auto full = encode(GrantBlocks{kKey, 0, std::vector<BlockId>(kHandoffBlocksMax)});
  EXPECT_LE(full.size(), kHandoffMessageBytesMax);
  EXPECT_GE(encode(GrantBlocks{kKey, 0, std::vector<BlockId>(1000)}).capacity(), 4000u + 54)
      << "a seal fits behind it";
  EXPECT_TRUE(decode_handoff(full).ok());
  WireWriter writer;
  writer.put_raw(std::span(full).first(full.size() - 4 * (kHandoffBlocksMax + 1)));
  writer.put(std::vector<BlockId>(kHandoffBlocksMax + 1));
  EXPECT_FALSE(decode_handoff(writer.bytes()).ok());

  Commit commit{kKey, 1, std::vector<ChoiceState>(kHandoffChoicesMax), {}};
  EXPECT_TRUE(decode_handoff(encode(commit)).ok());
  commit.num_blocks = kHandoffBlocksMax + 1;
  EXPECT_FALSE(decode_handoff(encode(commit)).ok());
  EXPECT_FALSE(decode_handoff(std::vector<std::byte>(kHandoffMessageBytesMax + 1)).ok());
}

TEST(HandoffMessages, NamesAnId) {
  EXPECT_EQ(to_string(kKey.id), "01020304050607081112131415161718");
}

TEST(HandoffMessages, CountsTheBlocksOfAPrompt) {
  EXPECT_EQ(num_prompt_blocks(0), 0u);
  EXPECT_EQ(num_prompt_blocks(1), 1u);
  EXPECT_EQ(num_prompt_blocks(32), 1u);
  EXPECT_EQ(num_prompt_blocks(33), 2u);
  EXPECT_EQ(num_prompt_blocks(UINT32_MAX), 134217728u);
}

}  // namespace
}  // namespace crossdock
