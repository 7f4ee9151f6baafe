#include "world.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdio>

#include "crossdock/engine/staging.h"

namespace crossdock::sim {
namespace {

// A failed assertion of an engine ends that engine and is a violation, not the end of the test.
void on_abort(int) {
  if (Fiber* fiber = Fiber::current()) fiber->escape();
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
}

void catch_aborts() {
  struct sigaction action{};
  action.sa_handler = on_abort;
  sigemptyset(&action.sa_mask);
  sigaction(SIGABRT, &action, nullptr);
}

Status invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

}  // namespace

World::World(uint64_t seed, bool trace)
    : seed_(seed),
      timeline_(seed, trace),
      checker_(timeline_, [this](EngineId id, uint64_t offset) { return use(id, offset); }),
      network_(timeline_, checker_) {
  catch_aborts();
}

World::~World() { signal(SIGABRT, SIG_DFL); }

EngineProcess& World::at(EngineId engine) { return *engines_.at(engine); }

Node& World::node(EngineId id) {
  const auto store = stores_.find(id);
  return store != stores_.end() ? store->second->node() : at(id).node();
}

std::optional<BlockUse> World::use(EngineId id, uint64_t offset) const {
  const auto store = stores_.find(id);
  return store != stores_.end() ? store->second->use(offset) : engines_.at(id)->use(offset);
}

Result<EngineId> World::add_engine(const EngineStart& start) {
  auto config = parse_engine_config(start.config_json);
  if (!config.ok()) return config.status();
  const DType dtype = config.value().kv_dtype;
  if (dtype != DType::kF32 && dtype != DType::kBf16) {
    return invalid("kv_dtype: the simulated model has f32 and bf16");
  }
  const std::string& transport = config.value().transport;
  if (transport != "auto" && transport != "shm" && transport != "tcp" && transport != "rc") {
    return invalid("transport: must be one of auto, shm, tcp, rc");
  }
  auto link = EngineLink::attach(start.memory_fd, start.to_engine_fd, start.to_front_fd);
  if (!link.ok()) return link.status();
  const std::string& name = config.value().model_directory;
  const Model& model = models_.try_emplace(name, name).first->second;
  const KvLayout layout = model.layout(dtype);
  const uint64_t num_blocks = config.value().kv_memory_bytes / layout.stride_bytes();
  if (num_blocks < 2) return invalid("kv_memory_bytes: at least two blocks");
  const EngineId id = next_id();
  Node& node = network_.add_node(id, start.host, transport, timeline_.random.next() | 1,
                                 num_blocks * layout.stride_bytes() + Staging::bytes(layout));
  engines_.emplace(id, std::make_unique<EngineProcess>(
                           EngineProcess::Ground{&timeline_, &network_, &model, &node},
                           config.value(), std::move(link).value(), start.to_front_fd, start.pace));
  timeline_.note("engine", id, node.epoch());
  return id;
}

StoreProcess& World::add_store(const StoreStart& start) {
  auto event = EventFd::create();
  assert(event.ok() && "descriptors are left");
  const EngineId id = next_id();
  Node& node = network_.add_node(id, start.host, start.transport, start.epoch, start.segment_bytes);
  timeline_.note("store", id, node.epoch());
  auto store = std::make_unique<StoreProcess>(network_, node, std::move(event).value());
  return *stores_.emplace(id, std::move(store)).first->second;
}

bool World::corrupt(EngineId store) {
  if (!stores_.at(store)->corrupt(timeline_.random)) return false;
  ++timeline_.statistics.blocks_corrupted;
  timeline_.note("corrupted", store);
  return true;
}

void World::kill(EngineId id) {
  if (const auto store = stores_.find(id); store != stores_.end()) return store->second->kill();
  if (at(id).exit_code().has_value()) return;
  at(id).kill();
  note_end(at(id));
}

void World::note_end(EngineProcess& engine) {
  const EngineId id = engine.node().id;
  const int exit_code = *engine.exit_code();
  timeline_.note("exit", id, static_cast<uint64_t>(exit_code));
  ended_.push_back(id);
  if (exit_code == EngineProcess::kAborted) {
    checker_.accuse("assert", id, "an assertion failed; stderr has it");
  }
}

std::vector<EngineId> World::ended() { return std::exchange(ended_, {}); }

std::optional<uint64_t> World::next_ns() {
  std::optional<uint64_t> next = timeline_.next_ns();
  for (const auto& [id, store] : stores_) {
    if (store->has_news()) return timeline_.now_ns();
  }
  for (const auto& [id, engine] : engines_) {
    engine->look_at_link();
    if (engine->due()) return timeline_.now_ns();
    if (engine->exit_code().has_value() || engine->node().stopped) continue;
    if (engine->wake_ns() == UINT64_MAX) continue;
    next = std::min(next.value_or(UINT64_MAX), engine->wake_ns());
  }
  return next;
}

bool World::advance(uint64_t until_ns) {
  // What their fronts did to the stores since, they did in view of every piece.
  for (const auto& [id, store] : stores_) {
    if (!store->changed()) continue;
    checker_.after_turn(id);
    check(*store, false);
  }
  if (take_news() || !ended_.empty()) return true;
  for (const auto& [id, engine] : engines_) engine->look_at_link();
  for (;;) {
    while (std::any_of(engines_.begin(), engines_.end(),
                       [](const auto& entry) { return entry.second->due(); })) {
      if (take_turn() || !ended_.empty()) return true;
    }
    if (take_news()) return true;
    uint64_t next = timeline_.next_ns().value_or(UINT64_MAX);
    const bool by_timeline = next <= until_ns;
    uint64_t wake = UINT64_MAX;
    for (const auto& [id, engine] : engines_) {
      if (engine->exit_code().has_value() || engine->node().stopped) continue;
      wake = std::min(wake, engine->wake_ns());
    }
    if (by_timeline && next <= wake) {
      timeline_.run_next();
    } else if (wake <= until_ns) {
      timeline_.move_to(wake);
    } else {
      if (until_ns > timeline_.now_ns()) timeline_.move_to(until_ns);
      return false;
    }
  }
}

// One of those that are due, whichever chance has first.
bool World::take_turn() {
  std::vector<EngineProcess*> due;
  for (const auto& [id, engine] : engines_) {
    if (engine->due()) due.push_back(engine.get());
  }
  EngineProcess& engine = *due[timeline_.random.below(due.size())];
  const bool told = engine.take_turn();
  if (engine.exit_code().has_value()) {
    note_end(engine);
  } else {
    checker_.after_turn(engine.node().id);
    check(engine);
  }
  return told;
}

// Whether a store's front has something to read.
bool World::take_news() {
  bool any = false;
  for (const auto& [id, store] : stores_) any |= store->take_news();
  return any;
}

void World::check() {
  for (const auto& [id, engine] : engines_) check(*engine);
  for (const auto& [id, store] : stores_) check(*store, true);
}

void World::check(EngineProcess& engine) {
  if (engine.exit_code().has_value()) return;
  if (holds([&] { engine.check(); })) return;
  checker_.accuse("conservation", engine.node().id, "see stderr for what differs");
}

void World::check(StoreProcess& store, bool all) {
  const EngineId id = store.node().id;
  if (!holds([&] { store.check_index(); })) {
    return checker_.accuse("conservation", id, "see stderr for what differs");
  }
  for (const uint32_t slot : store.wrong_slots(all)) {
    checker_.accuse("commit-before-bytes", id,
                    "slot " + std::to_string(slot) +
                        " of a kvstore is published, and its bytes are not those of its checksum");
  }
}

// On a fiber of its own: what does not hold aborts, and that is caught as an engine's abort is.
bool World::holds(const std::function<void()>& check) {
  bool held = false;
  Fiber fiber([&] {
    check();
    held = true;
  });
  fiber.resume();
  return held;
}

}  // namespace crossdock::sim
