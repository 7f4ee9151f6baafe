#include "fleet.h"

#include "crossdock/engine/staging.h"

namespace crossdock::sim::testing {

Outcome& Front::open(uint64_t sequence) {
  Outcome& outcome = outcomes[sequence];
  num_second_ends += outcome.over();
  return outcome;
}

void Front::on(const link::Tokens& e) {
  for (const auto& token : e.tokens) {
    Outcome& outcome = open(token.sequence_id);
    outcome.tokens.push_back(token.token);
    outcome.finish = token.finish;
  }
}

void Front::on(const link::HandoffDone& e) { open(e.sequence_id).handed_off = true; }

void Front::on(const link::Ended& e) {
  Outcome& outcome = open(e.sequence_id);
  outcome.ended = true;
  outcome.code = static_cast<StatusCode>(e.code);
}

Front& Fleet::add(const std::string& host, uint32_t num_blocks, const std::string& transport,
                  const std::string& kv_dtype) {
  auto front = std::make_unique<Front>();
  front->link = std::make_unique<FrontLink>(std::move(FrontLink::create(1 << 16)).value());
  const std::string config = "{\"model_directory\":\"sim\",\"kv_memory_bytes\":" +
                             std::to_string(num_blocks * kBlockAlignment) +
                             ",\"token_budget\":64,\"transport\":\"" + transport +
                             "\",\"kv_dtype\":\"" + kv_dtype + "\"}";
  auto added = world.add_engine({.config_json = config,
                                 .memory_fd = front->link->memory_fd(),
                                 .to_engine_fd = front->link->to_engine_fd(),
                                 .to_front_fd = front->link->to_front_fd(),
                                 .host = host});
  EXPECT_TRUE(added.ok()) << added.status().to_string();
  front->engine = added.value();
  fronts.push_back(std::move(front));
  Front& added_front = *fronts.back();
  EXPECT_TRUE(run_until([&] { return added_front.ready.num_blocks != 0; }));
  return added_front;
}

void Fleet::send(Front& front, const link::Command& command) {
  const Status status = front.link->send(command);
  ASSERT_TRUE(status.ok()) << status.to_string();
}

void Fleet::connect(Front& a, Front& b, uint32_t peer) {
  const auto command = [&](const Front& remote) {
    return link::ConnectPeer{.peer_id = peer,
                             .epoch = remote.ready.epoch,
                             .incarnation = 1000 + peer,
                             .mac_key = link::Bytes(32, 'k'),
                             .descriptor = remote.ready.descriptor,
                             .layout = remote.ready.layout};
  };
  send(a, command(b));
  send(b, command(a));
  EXPECT_TRUE(run_until([&] { return a.connected[peer] && b.connected[peer]; }));
}

void Fleet::start_handoff(Front& prefill, Front& decode, uint64_t handoff,
                          const std::vector<int32_t>& tokens, uint32_t peer) {
  const link::Task task{
      .sequence_id = handoff,
      .prompt = tokens,
      .sampling = {.temperature = 0, .max_tokens = kMaxTokens, .ignore_eos = true}};
  send(decode, link::Expect{.task = task,
                            .handoff_high = handoff,
                            .handoff_low = handoff,
                            .attempt = 1,
                            .source_epoch = prefill.ready.epoch});
  send(prefill, link::Prefill{.task = task,
                              .handoff_high = handoff,
                              .handoff_low = handoff,
                              .attempt = 1,
                              .peer_id = peer});
}

void Fleet::receive() {
  for (const auto& front : fronts) {
    auto events = front->link->receive();
    ASSERT_TRUE(events.ok()) << events.status().to_string();
    for (const auto& event : events.value()) {
      std::visit([&](const auto& e) { front->on(e); }, event);
    }
  }
}

bool Fleet::run_until(const std::function<bool()>& condition, uint64_t seconds) {
  const uint64_t deadline = world.timeline().now_ns() + seconds * 1'000'000'000;
  for (;;) {
    receive();
    if (condition()) return true;
    const auto next = world.next_ns();
    if (!next.has_value() || *next > deadline) return false;
    world.advance(*next);
    world.ended();
  }
}

void Fleet::run_for(uint64_t ns) {
  const uint64_t until = world.timeline().now_ns() + ns;
  while (world.advance(until)) {
    world.ended();
    receive();
  }
}

bool Fleet::clean(const Front& front) {
  const Inspection inside = world.at(front.engine).inspect();
  return inside.num_owned == 0 && inside.num_quarantined == 0 && inside.num_handoffs == 0 &&
         inside.num_requests == 0 && inside.num_receiving == 0;
}

std::vector<int32_t> prompt(size_t length, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(int32_t(random.below(kVocabSize)));
  return tokens;
}

std::vector<int32_t> expected(const std::vector<int32_t>& tokens) {
  static const Model model("sim");
  auto result =
      oracle(model, {.prompt = tokens,
                     .sampling = {.temperature = 0, .max_tokens = kMaxTokens, .ignore_eos = true}});
  return std::move(result).value();
}

}  // namespace crossdock::sim::testing
