// The receiving side, transition by transition.
#include "table_fixture.h"

namespace crossdock::testing {
namespace {

const Status kCancelled(StatusCode::kCancelled, "the caller went away");

event::Expect expect(uint32_t attempt = 1, uint64_t epoch = kPeerEpoch,
                     uint32_t num_tokens = kPromptTokens) {
  return {kId, attempt, epoch, num_tokens};
}
event::Reserved reserved() { return {kId, Status(), 1, {3, 4}}; }

Table expected(HandoffConfig config = Table::default_config()) {
  Table d(config);
  d.pair_up();
  EXPECT_EQ(d.on(expect()), "");
  return d;
}
Table reserving(HandoffConfig config = Table::default_config()) {
  Table d = expected(config);
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "reserve");
  return d;
}
Table granted(HandoffConfig config = Table::default_config()) {
  Table d = reserving(config);
  EXPECT_EQ(d.on(reserved()), "send-grant");
  return d;
}
HandoffConfig verify_config() {
  HandoffConfig config = Table::default_config();
  config.verify = true;
  return config;
}
Table verifying() {
  Table d = granted(verify_config());
  EXPECT_EQ(d.arrive(whole_commit()), "verify");
  return d;
}
Table committed() {
  Table d = granted();
  EXPECT_EQ(d.arrive(whole_commit()), "activate send-ack");
  return d;
}
Table quarantined() {
  Table d = granted();
  EXPECT_EQ(d.on(event::End{kId, kCancelled}), "send-revoke quarantine");
  return d;
}

TEST(Receiver, GrantsCommitsAndEnds) {
  Table d = granted();
  EXPECT_EQ(d.receiver(), ReceiverState::kGranted);
  EXPECT_EQ(d.sent<GrantBlocks>().blocks, (std::vector<BlockId>{3, 4}));
  EXPECT_EQ(d.sent<GrantBlocks>().num_matched_blocks, 1u);
  EXPECT_EQ(d.arrive(whole_commit()), "activate send-ack");
  EXPECT_EQ(d.got<action::Activate>().commit.choices[0].first_token, 42);
  EXPECT_EQ(d.receiver(), ReceiverState::kCommitted);
  EXPECT_EQ(d.on(event::End{kId, Status()}), "");
  EXPECT_EQ(d.receiver(), ReceiverState::kEnded);
  EXPECT_EQ(d.table().num_live(), 0u);
  EXPECT_EQ(d.counters().commits, 1u);
}

TEST(Receiver, HoldsNothingBeforeOpen) {
  Table d = expected();
  EXPECT_EQ(d.receiver(), ReceiverState::kExpected);
  EXPECT_EQ(d.on(event::End{kId, kCancelled}), "");
  EXPECT_EQ(d.receiver(), ReceiverState::kFreed);
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "send-refuse");
}

TEST(Receiver, OpenBeforeExpectWaits) {
  Table d;
  d.pair_up();
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "");
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "");
  EXPECT_EQ(d.counters().duplicates, 1u);
  EXPECT_EQ(d.on(expect()), "reserve");
  EXPECT_EQ(d.on(reserved()), "send-grant");
  EXPECT_EQ(d.sent<GrantBlocks>().key, kKey);
}

TEST(Receiver, OpenBeforeExpectIsRefusedInTimeAndRemembered) {
  Table d;
  d.pair_up();
  d.arrive(Open{kKey, kPromptTokens});
  EXPECT_EQ(d.table().next_tick(), 110u);
  d.tick = 109;
  EXPECT_EQ(d.on(event::Tick{}), "");
  d.tick = 110;
  EXPECT_EQ(d.on(event::Tick{}), "send-refuse");
  EXPECT_EQ(d.sent<Refuse>().reason, StatusCode::kNotFound);
  EXPECT_EQ(d.table().next_tick(), UINT64_MAX);
  EXPECT_EQ(d.on(expect()), "lost") << "its P has been refused already: it would wait for ever";
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "send-refuse");
}

TEST(Receiver, ExpectAfterOpenOfAnotherAttemptRefusesTheOpenOnly) {
  Table d;
  d.pair_up();
  d.arrive(Open{kKey, kPromptTokens});
  EXPECT_EQ(d.on(expect(2)), "send-refuse");
  EXPECT_EQ(d.sent<Refuse>().key, kKey) << "the refusal names the attempt that it refuses";
  EXPECT_EQ(d.receiver(), ReceiverState::kExpected);
  HandoffKey second = kKey;
  second.attempt = 2;
  EXPECT_EQ(d.arrive(Open{second, kPromptTokens}), "reserve");
}

TEST(Receiver, ExpectAfterOpenFromAnotherEpochRefusesTheOpenOnly) {
  Table d;
  d.pair_up();
  d.arrive(Open{kKey, kPromptTokens});
  EXPECT_EQ(d.on(expect(1, kPeerEpoch + 1)), "send-refuse");
  EXPECT_EQ(d.receiver(), ReceiverState::kExpected);
}

TEST(Receiver, PromptLengthsMustAgree) {
  Table d;
  d.pair_up();
  d.arrive(Open{kKey, kPromptTokens + 1});
  EXPECT_EQ(d.on(expect()), "send-refuse lost");
  EXPECT_EQ(d.counters().refused_shape, 1u);

  Table late = expected();
  EXPECT_EQ(late.arrive(Open{kKey, kPromptTokens - 1}), "send-refuse lost");
  EXPECT_EQ(late.receiver(), ReceiverState::kFreed);
}

TEST(Receiver, OpenOfAnotherAttemptIsRefused) {
  Table d = expected();
  HandoffKey key = kKey;
  key.attempt = 2;
  EXPECT_EQ(d.arrive(Open{key, kPromptTokens}), "send-refuse");
  EXPECT_EQ(d.receiver(), ReceiverState::kExpected);
  EXPECT_EQ(d.counters().refused_attempt, 1u);
}

TEST(Receiver, OpenFromAnotherEpochIsRefused) {
  Table d = expected();
  d.pair_up(2, kPeerEpoch + 1, 99);
  EXPECT_EQ(d.arrive(Open{{kId, 1, 99}, kPromptTokens}, 2), "send-refuse");
  EXPECT_EQ(d.counters().refused_epoch, 1u);
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "reserve");
}

TEST(Receiver, MessagesOfAnotherIncarnationOrPairAreDropped) {
  Table d = granted();
  EXPECT_EQ(d.arrive(whole_commit(2, 1, {kId, 1, kIncarnation + 1})), "");
  EXPECT_EQ(d.arrive(whole_commit(), 77), "");
  EXPECT_EQ(d.counters().refused_incarnation, 2u);
  EXPECT_EQ(d.receiver(), ReceiverState::kGranted);
}

TEST(Receiver, AnotherPairCannotSpeakForAHandoff) {
  Table d = quarantined();
  d.pair_up(2, kPeerEpoch + 1, 99);
  EXPECT_EQ(d.arrive(Aborted{{kId, 1, 99}}, 2), "");
  EXPECT_EQ(d.arrive(whole_commit(2, 1, {kId, 1, 99}), 2), "send-nack");
  EXPECT_EQ(d.receiver(), ReceiverState::kQuarantined);
}

TEST(Receiver, ReservationThatFailsIsRefusedAndLost) {
  Table d = reserving();
  EXPECT_EQ(d.on(event::Reserved{kId, Status(StatusCode::kResourceExhausted, "full"), 0, {}}),
            "send-refuse lost");
  EXPECT_EQ(d.sent<Refuse>().reason, StatusCode::kResourceExhausted);
  EXPECT_EQ(d.got<action::Lost>().reason.message(), "full");
  EXPECT_EQ(d.receiver(), ReceiverState::kFreed);
}

TEST(Receiver, DuplicateOpenGetsTheSameGrant) {
  Table d = granted();
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "send-grant");
  EXPECT_EQ(d.sent<GrantBlocks>().blocks, (std::vector<BlockId>{3, 4}));
  EXPECT_EQ(d.counters().duplicates, 1u);
}

TEST(Receiver, EndWhileReservingDropsTheReservation) {
  Table d = reserving();
  EXPECT_EQ(d.on(event::End{kId, kCancelled}), "send-refuse");
  EXPECT_EQ(d.receiver(), ReceiverState::kRevoked);
  EXPECT_EQ(d.on(reserved()), "drop-reservation");
  EXPECT_EQ(d.receiver(), ReceiverState::kFreed);
  EXPECT_EQ(d.table().num_live(), 0u);
}

TEST(Receiver, EndWhileReservingThatFails) {
  Table d = reserving();
  d.on(event::End{kId, kCancelled});
  EXPECT_EQ(d.on(event::Reserved{kId, Status(StatusCode::kResourceExhausted, "full"), 0, {}}), "");
  EXPECT_EQ(d.table().num_live(), 0u);
}

TEST(Receiver, RevokeWinsOverALaterCommitWhichProvesTheWritesDone) {
  Table d = quarantined();
  EXPECT_EQ(d.table().num_quarantined(), 1u);
  EXPECT_EQ(d.arrive(whole_commit()), "send-nack end-quarantine");
  EXPECT_EQ(d.receiver(), ReceiverState::kFreed);
  EXPECT_EQ(d.table().num_quarantined(), 0u);
  EXPECT_EQ(d.arrive(whole_commit()), "send-nack") << "ended once, refused again";
}

TEST(Receiver, AbortedEndsTheQuarantine) {
  Table d = quarantined();
  EXPECT_EQ(d.arrive(Aborted{kKey}), "end-quarantine");
  EXPECT_EQ(d.arrive(Aborted{kKey}), "");
  EXPECT_EQ(d.counters().aborts, 1u);
}

TEST(Receiver, CommitMustFitTheGrant) {
  for (const Commit& misfit :
       {whole_commit(1), whole_commit(3), whole_commit(2, 0), whole_commit(2, 2)}) {
    Table d = granted();
    EXPECT_EQ(d.arrive(misfit), "send-nack quarantine lost end-quarantine");
    EXPECT_EQ(d.receiver(), ReceiverState::kFreed);
    EXPECT_EQ(d.counters().refused_shape, 1u);
  }
}

TEST(Receiver, CommitWithoutAGrantIsRefused) {
  Table d = expected();
  EXPECT_EQ(d.arrive(whole_commit()), "send-nack");
  EXPECT_EQ(d.receiver(), ReceiverState::kExpected);
  Table r = reserving();
  EXPECT_EQ(r.arrive(whole_commit()), "send-nack");
  EXPECT_EQ(r.receiver(), ReceiverState::kReserving);
}

// Or a P that has forgotten the id would wait for an answer that never comes.
TEST(Receiver, OpenOfAnEndedHandoffIsRefused) {
  Table d = committed();
  d.on(event::End{kId, Status()});
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "send-refuse");
  EXPECT_EQ(d.sent<Refuse>().reason, StatusCode::kAborted);
  EXPECT_EQ(d.receiver(), ReceiverState::kEnded);
}

TEST(Receiver, DuplicateCommitIsAcknowledgedWithoutASecondActivation) {
  Table d = committed();
  EXPECT_EQ(d.arrive(whole_commit()), "send-ack");
  d.on(event::End{kId, Status()});
  EXPECT_EQ(d.arrive(whole_commit()), "send-ack");
  EXPECT_EQ(d.counters().duplicates, 2u);
  EXPECT_EQ(d.counters().commits, 1u);
}

TEST(Receiver, VerifiesBeforeItActivates) {
  Table d = verifying();
  EXPECT_EQ(d.got<action::Verify>().checksum[0], 9);
  EXPECT_EQ(d.receiver(), ReceiverState::kGranted);
  EXPECT_EQ(d.on(event::Verified{kId, true}), "activate send-ack");
  EXPECT_EQ(d.got<action::Activate>().commit.num_blocks, 2u);
}

TEST(Receiver, WrongChecksumIsLostAndFreesTheBlocks) {
  Table d = verifying();
  EXPECT_EQ(d.on(event::Verified{kId, false}), "send-nack quarantine lost end-quarantine");
  EXPECT_EQ(d.sent<Nack>().reason, StatusCode::kDataLoss);
  EXPECT_EQ(d.counters().refused_checksum, 1u);
}

TEST(Receiver, RevokeWhileVerifyingHasOneOutcome) {
  for (const bool ok : {true, false}) {
    Table d = verifying();
    EXPECT_EQ(d.on(event::End{kId, kCancelled}), "send-nack quarantine");
    EXPECT_EQ(d.receiver(), ReceiverState::kQuarantined);
    EXPECT_EQ(d.arrive(Aborted{kKey}), "") << "the check still reads the blocks";
    EXPECT_EQ(d.on(event::Verified{kId, ok}), "end-quarantine");
    EXPECT_EQ(d.receiver(), ReceiverState::kFreed);
    EXPECT_EQ(d.counters().commits, 0u);
  }
}

TEST(Receiver, CommitInHandWinsOverABrokenPairWhileVerifying) {
  Table d = verifying();
  EXPECT_EQ(d.on(event::PairBroken{kPair}), "");
  EXPECT_EQ(d.on(event::PairClosed{kPair, true}), "");
  EXPECT_EQ(d.on(event::PeerLost{kPeerEpoch}), "");
  EXPECT_EQ(d.on(event::Verified{kId, true}), "activate") << "no message on a broken pair";
}

TEST(Receiver, VerifyRefusesACommitWithoutAChecksum) {
  Table d = granted(verify_config());
  Commit commit = whole_commit();
  commit.checksum = {};
  EXPECT_EQ(d.arrive(commit), "send-nack quarantine lost end-quarantine");
}

TEST(Receiver, AbortFromTheSenderInEachState) {
  Table e = expected();
  EXPECT_EQ(e.arrive(Aborted{kKey}), "lost");
  Table r = reserving();
  EXPECT_EQ(r.arrive(Aborted{kKey}), "lost");
  EXPECT_EQ(r.on(reserved()), "drop-reservation");
  Table g = granted();
  EXPECT_EQ(g.arrive(Aborted{kKey}), "quarantine lost end-quarantine");
  Table c = committed();
  EXPECT_EQ(c.arrive(Aborted{kKey}), "") << "the commit came first";
  EXPECT_EQ(c.receiver(), ReceiverState::kCommitted);
  EXPECT_EQ(c.counters().late_messages, 1u);
  Table u;
  u.pair_up();
  EXPECT_EQ(u.arrive(Aborted{kKey}), "");
  EXPECT_EQ(u.on(expect()), "lost") << "P gave it up before Generate named it";
}

TEST(Receiver, BrokenPairRevokesWhatIsNotCommitted) {
  Table e = expected();
  EXPECT_EQ(e.on(event::PairBroken{kPair}), "lost");
  Table r = reserving();
  EXPECT_EQ(r.on(event::PairBroken{kPair}), "lost");
  EXPECT_EQ(r.on(reserved()), "drop-reservation");
  Table g = granted();
  EXPECT_EQ(g.on(event::PairBroken{kPair}), "quarantine lost");
  EXPECT_EQ(g.got<action::Lost>().reason.code(), StatusCode::kUnavailable);
  Table c = committed();
  EXPECT_EQ(c.on(event::PairBroken{kPair}), "");
  EXPECT_EQ(c.receiver(), ReceiverState::kCommitted);
}

TEST(Receiver, OnlyProofEndsTheQuarantineOfABrokenPair) {
  Table d = granted();
  d.on(event::PairBroken{kPair});
  EXPECT_EQ(d.arrive(Aborted{kKey}), "") << "nothing is heard on a broken pair";
  EXPECT_EQ(d.table().next_tick(), UINT64_MAX);
  EXPECT_EQ(d.on(event::PeerLost{kPeerEpoch}), "") << "lost heartbeats prove nothing";
  EXPECT_EQ(d.on(event::PairClosed{kPair, false}), "");
  EXPECT_EQ(d.table().num_quarantined(), 1u);
  EXPECT_EQ(d.on(event::PairClosed{kPair, true}), "end-quarantine") << "the process is gone";
  EXPECT_EQ(d.on(event::PairClosed{kPair, true}), "") << "the pair is forgotten";
}

TEST(Receiver, NewPairWithTheSamePeerIsProof) {
  Table d = granted();
  d.on(event::PairBroken{kPair});
  d.on(event::PairClosed{kPair, false});
  EXPECT_EQ(d.pair_up(2, kPeerEpoch + 1, 99), "") << "another epoch proves nothing";
  EXPECT_EQ(d.pair_up(3, kPeerEpoch, 100), "end-quarantine");
}

TEST(Receiver, NewPairSupersedesAnOldOneThatIsStillUp) {
  Table d = granted();
  EXPECT_EQ(d.pair_up(2, kPeerEpoch, 99), "quarantine lost break-pair end-quarantine");
  EXPECT_EQ(d.got<action::BreakPair>().pair, kPair);
  EXPECT_EQ(d.arrive(whole_commit()), "") << "messages of the old incarnation are refused";
}

TEST(Receiver, LostPeerFailsExpectationsAtOnce) {
  Table e = expected();
  EXPECT_EQ(e.on(event::PeerLost{kPeerEpoch}), "lost");
  Table r = reserving();
  EXPECT_EQ(r.on(event::PeerLost{kPeerEpoch}), "send-refuse lost");
  Table g = granted();
  EXPECT_EQ(g.on(event::PeerLost{kPeerEpoch}), "send-revoke quarantine lost");
  Table c = committed();
  EXPECT_EQ(c.on(event::PeerLost{kPeerEpoch}), "");
  Table before;
  before.on(event::PeerLost{kPeerEpoch});
  EXPECT_EQ(before.on(expect()), "lost");
}

TEST(Receiver, OpenOfAPeerTakenForGoneIsRefusedAtOnce) {
  Table d;
  d.pair_up();
  d.arrive(Open{kKey, kPromptTokens});
  EXPECT_EQ(d.on(event::PeerLost{kPeerEpoch}), "send-refuse") << "it may live and wait";
  EXPECT_EQ(d.on(expect()), "lost");
}

TEST(Receiver, PeerThatComesBackIsNoLongerLost) {
  Table d;
  d.on(event::PeerLost{kPeerEpoch});
  d.pair_up();
  EXPECT_EQ(d.on(expect()), "");
  EXPECT_EQ(d.receiver(), ReceiverState::kExpected);
}

TEST(Receiver, QuarantineThatOutlivesItsGraceBreaksThePairOnce) {
  Table d = quarantined();
  EXPECT_EQ(d.table().next_tick(), 120u);
  d.tick = 120;
  EXPECT_EQ(d.on(event::Tick{}), "break-pair");
  d.tick = 500;
  EXPECT_EQ(d.on(event::Tick{}), "");
  EXPECT_EQ(d.on(event::PairBroken{kPair}), "") << "it is broken for the table already";
  EXPECT_EQ(d.on(event::PairClosed{kPair, true}), "end-quarantine");
}

TEST(Receiver, BreakingThePairRevokesItsOtherGrantsFirst) {
  Table d = quarantined();
  const HandoffId other{8, 12};
  d.on(event::Expect{other, 1, kPeerEpoch, 32});
  d.arrive(Open{{other, 1, kIncarnation}, 32});
  d.on(event::Reserved{other, Status(), 0, {9}});
  d.tick = 120;
  EXPECT_EQ(d.on(event::Tick{}), "quarantine lost break-pair");
  EXPECT_EQ(d.got<action::Lost>().id, other);
  EXPECT_EQ(d.on(event::PairClosed{kPair, true}), "end-quarantine end-quarantine");
}

TEST(Receiver, ExpectationMayHaveABoundOfItsOwn) {
  HandoffConfig config = Table::default_config();
  config.expect_wait_ticks = 50;
  Table d = expected(config);
  d.tick = 150;
  EXPECT_EQ(d.on(event::Tick{}), "lost");
  EXPECT_EQ(d.got<action::Lost>().reason.code(), StatusCode::kDeadlineExceeded);
}

TEST(Receiver, EventsForNobodyAreCountedAndDoNothing) {
  Table d;
  EXPECT_EQ(d.on(event::End{kId, kCancelled}), "");
  EXPECT_EQ(d.on(event::Verified{kId, true}), "");
  EXPECT_EQ(d.on(event::PairBroken{5}), "");
  EXPECT_EQ(d.on(event::PairClosed{5, true}), "");
  EXPECT_EQ(d.on(reserved()), "drop-reservation") << "blocks that nobody waits for are given back";
  EXPECT_EQ(d.counters().late_events, 5u);
}

TEST(Receiver, FloodOfUnknownOpensIsBounded) {
  HandoffConfig config = Table::default_config();
  config.pending_opens_max = 16;
  config.tombstones_max = 32;
  Table d(config);
  d.pair_up();
  d.on(expect());
  d.on(event::End{kId, kCancelled});
  for (uint64_t i = 0; i < 10'000; ++i) {
    const auto words = d.arrive(Open{{{1000, i}, 1, kIncarnation}, 32});
    EXPECT_EQ(words, i < 16 ? "" : "send-refuse");
  }
  EXPECT_EQ(d.table().num_live(), 16u);
  EXPECT_EQ(d.counters().refused_limit, 10'000u - 16);
  const std::string text = d.table().describe();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 1 + 16 + 32 + 1);
  EXPECT_EQ(d.arrive(Open{kKey, kPromptTokens}), "send-refuse")
      << "our own tombstone is still there";
  d.tick = 110;
  d.on(event::Tick{});
  EXPECT_EQ(d.table().num_live(), 0u);
}

TEST(Receiver, TombstonesAreForgottenOldestFirst) {
  HandoffConfig config = Table::default_config();
  config.tombstones_max = 2;
  Table d(config);
  d.pair_up();
  for (uint64_t i = 0; i < 3; ++i) {
    d.on(event::Expect{{1, i}, 1, kPeerEpoch, 32});
    d.on(event::End{{1, i}, kCancelled});
  }
  EXPECT_EQ(d.arrive(Open{{{1, 0}, 1, kIncarnation}, 32}), "") << "forgotten: it waits";
  EXPECT_EQ(d.arrive(Open{{{1, 1}, 1, kIncarnation}, 32}), "send-refuse");
  EXPECT_EQ(d.arrive(Open{{{1, 2}, 1, kIncarnation}, 32}), "send-refuse");
}

}  // namespace
}  // namespace crossdock::testing
