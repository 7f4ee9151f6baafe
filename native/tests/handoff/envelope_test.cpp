// The seal of the handoff channel: whose message it is, and that nothing else moves the tables.
#include "crossdock/handoff/envelope.h"

#include <functional>

#include "table_fixture.h"

namespace crossdock::testing {
namespace {

constexpr uint64_t kSender = 0xE1E2E3E4E5E6E7E8;

PairKey pair_key() {
  PairKey key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  return key;
}

std::vector<HandoffMessage> one_of_each(const HandoffKey& key) {
  Commit commit{key, 5, {{-1, 2, 3}, {4, 5, 6}}, {}};
  commit.checksum.fill(7);
  return {Open{key, 99},
          GrantBlocks{key, 1, {7, 8, 9}},
          Refuse{key, StatusCode::kResourceExhausted},
          Revoke{key},
          commit,
          Ack{key},
          Nack{key, StatusCode::kDataLoss},
          Aborted{key}};
}

std::string outcome(std::span<const std::byte> sealed, const PairKey& key = pair_key(),
                    uint64_t sender = kSender) {
  const HandoffEvent event = receive(kPair, sealed, key, sender);
  if (std::holds_alternative<event::Arrived>(event)) return "arrived";
  if (std::holds_alternative<event::Malformed>(event)) return "malformed";
  return std::holds_alternative<event::Forged>(event) ? "forged" : "something else";
}

TEST(Envelope, BringsEachMessageAcross) {
  for (const HandoffMessage& message : one_of_each(kKey)) {
    const auto sealed = seal(encode(message), pair_key(), kSender);
    const HandoffEvent event = receive(kPair, sealed, pair_key(), kSender);
    ASSERT_TRUE(std::holds_alternative<event::Arrived>(event));
    EXPECT_EQ(std::get<event::Arrived>(event).pair, kPair);
    EXPECT_EQ(encode(std::get<event::Arrived>(event).message), encode(message));
  }
}

TEST(Envelope, SealIsAFixedFunctionOfTheBytes) {
  // Pinned: both sides of a rolling upgrade must agree. Made with BLAKE2b of another
  // implementation (Python's hashlib) over bytes packed there by hand: the key counts up from 0,
  // the salt is the sender's epoch, the personalisation is "crossdock-sealed".
  const HandoffKey key{{0x0102030405060708, 0x1112131415161718}, 3, 0x2122232425262728};
  const std::vector<std::string> macs = {
      "c60506ffa173de998393a0ffda46ba41", "0a7d11c2106afe495782d8579fac7aa8",
      "76f17560785dd7d04ea345a17c78b8f0", "2fab72ab8d8824e22a4b93986cb99863",
      "c71da499af5411ef21a9991e91cfb00c", "f3f72e2f48665883f33a39b41ca42c06",
      "646edf095988f5d6ae116e6f70738dc0", "53272a3447e3e338c97bd7c8b5c369b9"};
  const auto messages = one_of_each(key);
  for (size_t kind = 0; kind < messages.size(); ++kind) {
    const auto sealed = seal(encode(messages[kind]), pair_key(), kSender);
    std::string hex;
    for (const std::byte b : std::span(sealed).last(kSealBytes)) {
      static constexpr char kDigits[] = "0123456789abcdef";
      hex += kDigits[std::to_integer<int>(b) >> 4];
      hex += kDigits[std::to_integer<int>(b) & 15];
    }
    EXPECT_EQ(hex, macs[kind]) << "kind " << kind;
  }
}

TEST(Envelope, EveryBitIsUnderTheSeal) {
  for (const HandoffMessage& message : one_of_each(kKey)) {
    auto sealed = seal(encode(message), pair_key(), kSender);
    for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
      sealed[bit / 8] ^= std::byte(1 << bit % 8);
      EXPECT_EQ(outcome(sealed), "forged") << "kind " << message.index() << " bit " << bit;
      sealed[bit / 8] ^= std::byte(1 << bit % 8);
    }
    for (size_t length = 0; length < sealed.size(); ++length) {
      EXPECT_EQ(outcome(std::span(sealed).first(length)), "forged") << "length " << length;
    }
    sealed.push_back(std::byte{0});
    EXPECT_EQ(outcome(sealed), "forged");
  }
}

TEST(Envelope, OnlyTheSenderUnderThePairsKeyCanSeal) {
  PairKey other = pair_key();
  other[31] ^= 0x80;
  for (const HandoffMessage& message : one_of_each(kKey)) {
    const auto sealed = seal(encode(message), pair_key(), kSender);
    EXPECT_EQ(outcome(sealed, other), "forged") << "of another pair";
    EXPECT_EQ(outcome(sealed, pair_key(), kPeerEpoch), "forged")
        << "sent back, or before a restart";
    auto unsealed = encode(message);
    EXPECT_EQ(outcome(unsealed), "forged");
    unsealed.resize(unsealed.size() + kSealBytes);
    EXPECT_EQ(outcome(unsealed), "forged");
  }
}

TEST(Envelope, TheLongestMessageIsLetInAndNothingLonger) {
  const GrantBlocks longest{kKey, 0, std::vector<BlockId>(kHandoffBlocksMax)};
  EXPECT_EQ(outcome(seal(encode(longest), pair_key(), kSender)), "arrived");
  std::vector<std::byte> bytes(kHandoffMessageBytesMax);
  EXPECT_EQ(outcome(seal(bytes, pair_key(), kSender)), "malformed");
  bytes.push_back(std::byte{0});
  EXPECT_EQ(outcome(seal(bytes, pair_key(), kSender)), "forged");
}

// A peer that seals what cannot be read is broken, which nobody else can bring about.
TEST(Envelope, WhatThePeerSealsMustParse) {
  auto newer = encode(Ack{kKey});
  newer[0] = std::byte{kHandoffVersion + 1};
  EXPECT_EQ(outcome(seal(newer, pair_key(), kSender)), "malformed");
  auto cut = encode(Open{kKey, 99});
  cut.pop_back();
  EXPECT_EQ(outcome(seal(cut, pair_key(), kSender)), "malformed");
  EXPECT_EQ(outcome(seal({}, pair_key(), kSender)), "malformed");
}

// ---- the tables ----

const HandoffId kStranger{77, 1};

// An authentic message about another handoff, to either side.
Table met(HandoffConfig config = Table::default_config()) {
  Table table(config);
  table.pair_up();
  table.arrive(Ack{{kStranger, 1, kIncarnation}});
  return table;
}

using Script = std::vector<HandoffEvent>;

event::Arrived said(HandoffMessage message) { return {kPair, std::move(message)}; }

// One script into every state that a handoff can be in, those of the receiver first.
std::vector<Script> scripts() {
  const HandoffEvent expect = event::Expect{kId, 1, kPeerEpoch, kPromptTokens};
  const HandoffEvent open = said(Open{kKey, kPromptTokens});
  const HandoffEvent reserved = event::Reserved{kId, Status(), 1, {3, 4}};
  const HandoffEvent commit = said(whole_commit());
  const HandoffEvent end = event::End{kId, Status(StatusCode::kCancelled, "gone")};
  const HandoffEvent verified = event::Verified{kId, true};
  const HandoffEvent prepare = event::Prepare{kId, 1, kPair, kPromptTokens};
  const HandoffEvent begin = event::Begin{kId};
  const HandoffEvent grant = said(GrantBlocks{kKey, 1, {3, 4}});
  const HandoffEvent all_in = event::WritesArrived{kId, {{42, 1, 2}}, {}};
  const HandoffEvent cancel = event::Cancel{kId, Status(StatusCode::kCancelled, "gone")};
  const HandoffEvent stopped = event::WritesStopped{kId};
  return {{},
          {open},
          {expect},
          {expect, open},
          {expect, open, reserved},
          {expect, open, reserved, commit},
          {expect, open, reserved, commit, verified},
          {expect, open, end},
          {expect, open, reserved, end},
          {expect, open, reserved, commit, end},
          {expect, open, reserved, commit, verified, end},
          {expect, end},
          {prepare},
          {prepare, begin},
          {prepare, begin, grant},
          {prepare, begin, grant, all_in},
          {prepare, begin, grant, cancel},
          {prepare, begin, grant, cancel, stopped},
          {prepare, begin, grant, all_in, said(Ack{kKey})}};
}

TEST(Forgery, MovesNothingInAnyState) {
  HandoffConfig config = Table::default_config();
  config.verify = true;
  std::map<std::string, int> states;
  for (const Script& script : scripts()) {
    Table table = met(config);
    for (const HandoffEvent& event : script) table.on(event);
    const std::string before = table.table().describe();
    ++states[before];
    EXPECT_EQ(table.on(event::Forged{kPair}), "");
    EXPECT_EQ(table.table().describe(), before);
    EXPECT_EQ(table.counters().refused_mac, 1u);
  }
  EXPECT_EQ(states.size(), receiver::kNumStates + sender::kNumStates - 2)
      << "each but the sender's absent and aborting_broken, of a broken pair";
}

TEST(Forgery, DoesNotBreakAPairThatWorks) {
  Table table = met();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(table.on(event::Forged{kPair}), "");
  EXPECT_EQ(table.counters().refused_mac, 1000u);
  EXPECT_EQ(table.arrive(Open{kKey, kPromptTokens}), "");
  EXPECT_EQ(table.on(event::Expect{kId, 1, kPeerEpoch, kPromptTokens}), "reserve");
}

TEST(Forgery, BreaksAPairWhoseKeysHaveNeverAgreed) {
  Table table;
  table.pair_up();
  table.on(event::Expect{kId, 1, kPeerEpoch, kPromptTokens});
  EXPECT_EQ(table.on(event::Forged{kPair}), "lost break-pair");
  EXPECT_EQ(table.on(event::Forged{kPair}), "") << "it is broken once";
  EXPECT_EQ(table.counters().refused_mac, 2u);
  // What an authentic message of another incarnation says is not believed, nor that it was heard.
  Table stale;
  stale.pair_up();
  stale.arrive(Ack{{kStranger, 1, kIncarnation + 1}});
  EXPECT_EQ(stale.on(event::Forged{kPair}), "break-pair");
}

TEST(Forgery, OnNoPairIsCountedAlone) {
  Table table;
  EXPECT_EQ(table.on(event::Forged{kPair}), "");
  EXPECT_EQ(table.counters().refused_mac, 1u);
}

}  // namespace
}  // namespace crossdock::testing
