// What can go wrong with one handoff, a row each: both sides' tables, what happens, the one outcome
// on each side, and every counter that moved.
#include <deque>

#include "crossdock/handoff/envelope.h"
#include "table_fixture.h"

namespace crossdock::testing {
namespace {

constexpr HandoffKey kStrangerKey{kId, 1, 99};
constexpr PairId kStrangerPair = 2;
constexpr uint64_t kEpochOfD = 0xD0;
constexpr PairKey kPairKey{1}, kOtherKey{2};

// Both ends of one pair, and the messages between them in order.
struct Sides {
  explicit Sides(bool verify = false) : p(config(verify)), d(config(verify)) {
    p.pair_up(kPair, kEpochOfD);
    d.pair_up(kPair, kPeerEpoch);
  }
  static HandoffConfig config(bool verify) {
    HandoffConfig config = Table::default_config();
    config.answer_wait_ticks = 30;
    config.verify = verify;
    return config;
  }

  void tell_p(const HandoffEvent& event) {
    p.on(event);
    collect(p, to_d);
  }
  void tell_d(const HandoffEvent& event) {
    d.on(event);
    collect(d, to_p);
  }
  void deliver() {
    while (!to_d.empty() || !to_p.empty()) {
      auto& queue = to_d.empty() ? to_p : to_d;
      const HandoffMessage message = queue.front();
      queue.pop_front();
      &queue == &to_d ? arrive_at_d(message) : arrive_at_p(message);
    }
  }
  void pass(uint64_t num_ticks) {
    p.tick += num_ticks;
    d.tick += num_ticks;
    tell_p(event::Tick{});
    tell_d(event::Tick{});
  }
  void arrive_at_d(const HandoffMessage& message, PairId pair = kPair,
                   const PairKey& key = kPairKey) {
    tell_d(receive(pair, seal(encode(message), key, kPeerEpoch), kPairKey, kPeerEpoch));
  }
  void arrive_at_p(const HandoffMessage& message, const PairKey& key = kPairKey) {
    tell_p(receive(kPair, seal(encode(message), key, kEpochOfD), kPairKey, kEpochOfD));
  }
  void forge_at_d(const HandoffMessage& message) { arrive_at_d(message, kPair, kOtherKey); }
  void forge_at_p(const HandoffMessage& message) { arrive_at_p(message, kOtherKey); }
  // Each has heard the other, about another handoff.
  void meet() {
    arrive_at_d(Aborted{{{1, 1}, 1, kIncarnation}});
    arrive_at_p(Ack{{{1, 1}, 1, kIncarnation}});
  }

  void expect() { tell_d(event::Expect{kId, 1, kPeerEpoch, kPromptTokens}); }
  void open() {
    tell_p(event::Prepare{kId, 1, kPair, kPromptTokens});
    tell_p(event::Begin{kId});
  }
  void write() {
    expect();
    open();
    deliver();
  }
  void commit() {  // on its way
    write();
    event::WritesArrived arrived{kId, {{42, 1, 2}}, {}};
    arrived.checksum.fill(9);
    tell_p(arrived);
  }
  void finish_commit() {
    commit();
    deliver();
  }

  Table p, d;
  std::deque<HandoffMessage> to_d, to_p;

 private:
  void collect(Table& from, std::deque<HandoffMessage>& queue) {
    const std::vector<HandoffAction> actions = from.last;
    for (const HandoffAction& any : actions) {
      if (const auto* send = std::get_if<action::Send>(&any)) queue.push_back(send->message);
      if (std::holds_alternative<action::Reserve>(any)) {
        tell_d(event::Reserved{kId, Status(), 1, {3, 4}});
      }
    }
  }
};

struct Row {
  const char* what;
  void (*before)(Sides&);
  void (*happens)(Sides&);
  ReceiverState d_state;
  SenderState p_state;
  const char* d_counters;  // those that moved meanwhile, by how much
  const char* p_counters;
  bool verify = false;
};

const Status kGone(StatusCode::kCancelled, "the caller went away");

using D = ReceiverState;
using P = SenderState;
const Row kRows[] = {
    {"a write cannot be posted", [](Sides& s) { s.write(); },
     [](Sides& s) {
       s.tell_p(event::WritesFailed{kId, Status(StatusCode::kUnavailable, "endpoint")});
       s.tell_p(event::WritesStopped{kId});
       s.deliver();
     },
     D::kFreed, P::kAborted, "aborts 1", "aborts 1, failed_writes 1"},
    {"a commit is lost", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.to_d.clear();
       s.pass(30);
       s.deliver();
     },
     D::kFreed, P::kAborted, "aborts 1", "expired 1"},
    {"an acknowledgement is lost", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.arrive_at_d(s.to_d.front());
       s.to_d.clear();
       s.to_p.clear();
       s.pass(30);
       s.deliver();
     },
     D::kCommitted, P::kAborted, "commits 1, late_messages 1", "expired 1"},
    {"a commit comes twice", [](Sides& s) { s.finish_commit(); },
     [](Sides& s) {
       s.arrive_at_d(whole_commit());
       s.deliver();
     },
     D::kCommitted, P::kDone, "duplicates 1", "duplicates 1"},
    {"a commit comes again after the end",
     [](Sides& s) {
       s.finish_commit();
       s.tell_d(event::End{kId, Status()});
     },
     [](Sides& s) {
       s.arrive_at_d(whole_commit());
       s.deliver();
     },
     D::kEnded, P::kDone, "duplicates 1", "duplicates 1"},
    {"a commit comes after the revoke", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.tell_d(event::End{kId, kGone});
       s.to_p.clear();  // the revoke comes too late to matter
       s.deliver();
     },
     D::kFreed, P::kAborted, "revokes 1, refused_state 1, late_messages 1", "aborts 1"},
    {"a message is truncated", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       auto sealed = seal(encode(s.to_d.front()), kPairKey, kPeerEpoch);
       s.to_d.clear();
       sealed.pop_back();
       s.tell_d(receive(kPair, sealed, kPairKey, kPeerEpoch));
       s.pass(30);
       s.deliver();
     },
     D::kFreed, P::kAborted, "aborts 1, refused_mac 1", "expired 1"},
    {"a message of the peer's cannot be read", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.tell_d(event::Malformed{kPair, Status(StatusCode::kInvalidArgument, "wrong length")});
       s.tell_p(event::PairBroken{kPair});
       s.tell_d(event::PairClosed{kPair, true});
     },
     D::kFreed, P::kAborted, "refused_malformed 1, lost 1", "aborts 1"},
    {"the first message of a pair is forged",
     [](Sides& s) {
       s.expect();
       s.open();
     },
     [](Sides& s) {
       s.forge_at_d(Open{kKey, kPromptTokens});
       s.tell_p(event::PairBroken{kPair});
       s.deliver();
     },
     D::kFreed, P::kAborted, "refused_incarnation 1, refused_mac 1, lost 1", "aborts 1"},
    {"an open is forged",
     [](Sides& s) {
       s.meet();
       s.expect();
     },
     [](Sides& s) { s.forge_at_d(Open{kKey, kPromptTokens + 1}); }, D::kExpected, P::kAborted,
     "refused_mac 1", ""},
    {"a grant is forged",
     [](Sides& s) {
       s.meet();
       s.open();
     },
     [](Sides& s) { s.forge_at_p(GrantBlocks{kKey, 0, {8, 9}}); }, D::kFreed, P::kOpened, "",
     "refused_mac 1"},
    {"a refusal is forged",
     [](Sides& s) {
       s.meet();
       s.open();
     },
     [](Sides& s) { s.forge_at_p(Refuse{kKey, StatusCode::kAborted}); }, D::kFreed, P::kOpened, "",
     "refused_mac 1"},
    {"a revoke is forged", [](Sides& s) { s.write(); },
     [](Sides& s) { s.forge_at_p(Revoke{kKey}); }, D::kGranted, P::kWriting, "", "refused_mac 1"},
    {"a commit is forged", [](Sides& s) { s.write(); },
     [](Sides& s) { s.forge_at_d(whole_commit()); }, D::kGranted, P::kWriting, "refused_mac 1", ""},
    {"an acknowledgement is forged", [](Sides& s) { s.commit(); },
     [](Sides& s) { s.forge_at_p(Ack{kKey}); }, D::kGranted, P::kCommitting, "", "refused_mac 1"},
    {"a refusal of a commit is forged", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.forge_at_p(Nack{kKey, StatusCode::kDataLoss});
       s.deliver();
     },
     D::kCommitted, P::kDone, "commits 1", "commits 1, refused_mac 1"},
    {"an abort is forged", [](Sides& s) { s.write(); },
     [](Sides& s) { s.forge_at_d(Aborted{kKey}); }, D::kGranted, P::kWriting, "refused_mac 1", ""},
    {"an abort that ends a quarantine is forged",
     [](Sides& s) {
       s.write();
       s.tell_d(event::End{kId, kGone});
     },
     [](Sides& s) {
       s.forge_at_d(Aborted{kKey});
       EXPECT_EQ(s.d.table().num_quarantined(), 1u) << "P may still be writing";
       s.deliver();
       s.tell_p(event::WritesStopped{kId});
       s.deliver();
     },
     D::kFreed, P::kAborted, "aborts 1, refused_mac 1", "aborts 1"},
    {"a message is sent back to its sender", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.tell_p(
           receive(kPair, seal(encode(s.to_d.front()), kPairKey, kPeerEpoch), kPairKey, kEpochOfD));
       s.deliver();
     },
     D::kCommitted, P::kDone, "commits 1", "commits 1, refused_mac 1"},
    {"a commit comes from another epoch", [](Sides& s) { s.expect(); },
     [](Sides& s) {
       s.d.pair_up(kStrangerPair, kPeerEpoch + 1, kStrangerKey.incarnation);
       s.arrive_at_d(whole_commit(2, 1, kStrangerKey), kStrangerPair);
     },
     D::kExpected, P::kAborted, "refused_epoch 1", ""},
    {"a commit comes by another pair", [](Sides& s) { s.write(); },
     [](Sides& s) {
       s.d.pair_up(kStrangerPair, kPeerEpoch + 1, kStrangerKey.incarnation);
       s.arrive_at_d(whole_commit(2, 1, kStrangerKey), kStrangerPair);
     },
     D::kGranted, P::kWriting, "refused_incarnation 1", ""},
    {"a commit is of another incarnation", [](Sides& s) { s.write(); },
     [](Sides& s) {
       s.arrive_at_d(whole_commit(2, 1, {kId, 1, kIncarnation - 1}));
       s.deliver();
     },
     D::kGranted, P::kWriting, "refused_incarnation 1", ""},
    {"a commit is of another attempt", [](Sides& s) { s.write(); },
     [](Sides& s) {
       s.arrive_at_d(whole_commit(2, 1, {kId, 2, kIncarnation}));
       s.deliver();
     },
     D::kGranted, P::kWriting, "refused_attempt 1", "refused_attempt 1"},
    {"a commit covers other blocks", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.to_d.clear();
       s.arrive_at_d(whole_commit(3));
       s.deliver();
     },
     D::kFreed, P::kAborted, "refused_shape 1, late_messages 1", "aborts 1"},
    {"the bytes do not match the commit", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.deliver();
       s.tell_d(event::Verified{kId, false});
       s.deliver();
     },
     D::kFreed, P::kAborted, "refused_checksum 1, late_messages 1", "aborts 1", true},
    {"an abort crosses the commit's acknowledgement", [](Sides& s) { s.commit(); },
     [](Sides& s) {
       s.tell_p(event::Cancel{kId, kGone});
       s.deliver();
     },
     D::kCommitted, P::kAborted, "commits 1, late_messages 1", "aborts 1, late_messages 1"},
    {"the router dies between Generate and Prefill", [](Sides& s) { s.expect(); },
     [](Sides& s) { s.tell_d(event::End{kId, kGone}); }, D::kFreed, P::kAborted, "revokes 1", ""},
    {"the router dies between Prefill and Generate",
     [](Sides& s) {
       s.open();
       s.deliver();
     },
     [](Sides& s) {
       s.tell_p(event::Cancel{kId, kGone});
       s.deliver();
     },
     D::kFreed, P::kAborted, "aborts 1", "aborts 1"},
    {"nobody ever calls Generate",
     [](Sides& s) {
       s.open();
       s.deliver();
     },
     [](Sides& s) {
       s.pass(10);
       s.deliver();
     },
     D::kFreed, P::kAborted, "expired 1", "aborts 1"},
};

std::string moved(const HandoffCounters& before, const HandoffCounters& after) {
  std::string text;
  for (const auto& [name, counter] : kHandoffCounters) {
    if (after.*counter == before.*counter) continue;
    text += (text.empty() ? "" : ", ") + std::string(name) + " " +
            std::to_string(after.*counter - before.*counter);
  }
  return text;
}

TEST(HandoffOutcomes, EachHasOneAndIsCounted) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.what);
    Sides s(row.verify);
    row.before(s);
    const HandoffCounters d_before = s.d.counters(), p_before = s.p.counters();
    row.happens(s);
    EXPECT_EQ(s.d.receiver(), row.d_state);
    EXPECT_EQ(s.p.sender(), row.p_state);
    EXPECT_EQ(moved(d_before, s.d.counters()), row.d_counters);
    EXPECT_EQ(moved(p_before, s.p.counters()), row.p_counters);
    EXPECT_EQ(s.d.table().num_quarantined(), 0u);
  }
}

}  // namespace
}  // namespace crossdock::testing
