// The Python module crossdock_sim: see tests/sim/crossdock_sim.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <variant>

#include "world.h"

namespace crossdock::sim {
namespace {

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) throw std::invalid_argument(result.status().to_string());
  return std::move(result).value();
}

// An engine together with what its process is.
struct EngineView {
  Inspection inside;
  std::string state;
  std::optional<int> exit_code;
  uint64_t epoch = 0;
  uint64_t num_operations = 0;
};

EngineView inspect(World& world, EngineId engine) {
  EngineProcess& process = world.at(engine);
  EngineView view{.inside = process.inspect(),
                  .state = process.node().stopped ? "stopped" : "running",
                  .exit_code = process.exit_code(),
                  .epoch = process.node().epoch(),
                  .num_operations = world.network().num_operations(process.node())};
  if (view.exit_code.has_value()) view.state = "ended";
  return view;
}

std::map<std::string, uint64_t> counters(const EngineView& view) {
  const HandoffCounters& counters = view.inside.counters;
  std::map<std::string, uint64_t> named;
  for (const auto& [name, counter] : kHandoffCounters) named[name] = counters.*counter;
  return named;
}

std::map<std::string, uint64_t> named(const Statistics& s) {
  return {{"turns", s.turns},
          {"layers", s.layers},
          {"computed_tokens", s.computed_tokens},
          {"messages", s.messages},
          {"messages_tampered", s.messages_tampered},
          {"operations", s.operations},
          {"posts_failed", s.posts_failed},
          {"completions_lost", s.completions_lost},
          {"pieces_landed", s.pieces_landed},
          {"bytes_landed", s.bytes_landed},
          {"landed_late", s.landed_late},
          {"landed_quarantined", s.landed_quarantined},
          {"pieces_dropped", s.pieces_dropped},
          {"blocks_corrupted", s.blocks_corrupted},
          {"pairs_ready", s.pairs_ready},
          {"pairs_broken", s.pairs_broken}};
}

Node& node(World& world, EngineId id) { return world.node(id); }

PathConditions changed(PathConditions way, std::optional<uint64_t> delay_min_ns,
                       std::optional<uint64_t> delay_max_ns, std::optional<uint64_t> bytes_per_s) {
  way.delay_min_ns = delay_min_ns.value_or(way.delay_min_ns);
  way.delay_max_ns = delay_max_ns.value_or(way.delay_max_ns);
  way.bytes_per_s = bytes_per_s.value_or(way.bytes_per_s);
  if (way.delay_min_ns > way.delay_max_ns || way.bytes_per_s == 0) {
    throw std::invalid_argument("delay_min_ns exceeds delay_max_ns, or bytes_per_s is 0");
  }
  return way;
}

void bind_views(nb::module_& m) {
  nb::class_<Violation>(m, "Violation")
      .def_ro("rule", &Violation::rule)
      .def_ro("engine", &Violation::engine)
      .def_ro("at_ns", &Violation::at_ns)
      .def_ro("text", &Violation::text);
  const auto count = [](auto member) {
    return [member](const EngineView& view) { return view.inside.*member; };
  };
  nb::class_<EngineView>(m, "Inspection")
      .def_ro("state", &EngineView::state)
      .def_ro("exit_code", &EngineView::exit_code)
      .def_ro("epoch", &EngineView::epoch)
      .def_ro("num_operations", &EngineView::num_operations)
      .def_prop_ro("num_blocks", count(&Inspection::num_blocks))
      .def_prop_ro("num_free", count(&Inspection::num_free))
      .def_prop_ro("num_owned", count(&Inspection::num_owned))
      .def_prop_ro("num_cached", count(&Inspection::num_cached))
      .def_prop_ro("num_quarantined", count(&Inspection::num_quarantined))
      .def_prop_ro("num_sequences", count(&Inspection::num_requests))
      .def_prop_ro("num_handoffs", count(&Inspection::num_handoffs))
      .def_prop_ro("num_receiving", count(&Inspection::num_receiving))
      .def_prop_ro("num_sendings", count(&Inspection::num_sendings))
      .def_prop_ro("num_staging_free", count(&Inspection::num_staging_free))
      .def_prop_ro("num_pairs", count(&Inspection::num_pairs))
      .def_prop_ro("num_store_blocks_read", count(&Inspection::num_store_blocks_read))
      .def_prop_ro("num_store_blocks_written", count(&Inspection::num_store_blocks_written))
      .def_prop_ro("num_store_blocks_bad", count(&Inspection::num_store_blocks_bad))
      .def_prop_ro("table", [](const EngineView& view) { return view.inside.table; })
      .def_prop_ro("counters", &counters);
}

void bind_engines(nb::class_<World>& world) {
  world
      .def(
          "add_engine",
          [](World& self, std::string config_json, int memory_fd, int to_engine_fd, int to_front_fd,
             std::string host, uint64_t token_ns, uint64_t step_ns) {
            return value_or_raise(self.add_engine({.config_json = std::move(config_json),
                                                   .memory_fd = memory_fd,
                                                   .to_engine_fd = to_engine_fd,
                                                   .to_front_fd = to_front_fd,
                                                   .host = std::move(host),
                                                   .pace = {step_ns, token_ns}}));
          },
          nb::kw_only(), "config_json"_a, "memory_fd"_a, "to_engine_fd"_a, "to_front_fd"_a,
          "host"_a, "token_ns"_a = 20'000, "step_ns"_a = 200'000)
      .def("kill", &World::kill, "process"_a)
      .def(
          "kill_at_operation",
          [](World& self, EngineId engine, uint32_t count) {
            self.at(engine).kill_at_operation(count);
          },
          "engine"_a, "count"_a)
      .def("stop", &World::stop, "process"_a)
      .def("resume", &World::resume, "process"_a)
      .def(
          "set_pace",
          [](World& self, EngineId engine, uint64_t token_ns, uint64_t step_ns) {
            self.at(engine).pace = {step_ns, token_ns};
          },
          "engine"_a, nb::kw_only(), "token_ns"_a, "step_ns"_a)
      .def("inspect", &inspect, "engine"_a)
      .def("ended", &World::ended);
}

// What its front hears of, by the types of crossdock._native.
using PeerChange = std::variant<PeerReady, PeerBroken, PeerClosed>;

std::vector<PeerChange> drain(StoreProcess& store) {
  std::vector<PeerChange> changes;
  for (const TransferEvent& event : store.drain()) {
    if (const auto* ready = std::get_if<PeerReady>(&event)) changes.emplace_back(*ready);
    if (const auto* broken = std::get_if<PeerBroken>(&event)) changes.emplace_back(*broken);
    if (const auto* closed = std::get_if<PeerClosed>(&event)) changes.emplace_back(*closed);
  }
  return changes;
}

void bind_stores(nb::module_& m, nb::class_<World>& world) {
  nb::class_<StoreProcess>(m, "Segment")
      .def_prop_ro("process_id", [](StoreProcess& self) { return self.node().id; })
      .def_prop_ro("descriptor",
                   [](StoreProcess& self) {
                     const auto bytes = encode(self.node().descriptor);
                     return nb::bytes(bytes.data(), bytes.size());
                   })
      .def_prop_ro("event_fd", &StoreProcess::event_fd)
      .def(
          "connect",
          [](StoreProcess& self, PeerId peer_id, uint64_t incarnation,
             const nb::bytes& descriptor) {
            const auto* begin = static_cast<const std::byte*>(descriptor.data());
            auto remote = value_or_raise(decode_endpoint(std::span(begin, descriptor.size())));
            self.submit(
                Connect{.peer = peer_id, .incarnation = incarnation, .remote = std::move(remote)});
          },
          nb::kw_only(), "peer_id"_a, "incarnation"_a, "descriptor"_a)
      .def(
          "disconnect",
          [](StoreProcess& self, PeerId peer_id) { self.submit(Disconnect{.peer = peer_id}); },
          "peer_id"_a)
      .def("drain", &drain)
      .def("watch", &StoreProcess::watch, "index"_a, "stride_bytes"_a, "block_bytes"_a);
  world
      .def(
          "add_store",
          [](World& self, std::string host, std::string transport, uint64_t epoch,
             uint64_t segment_bytes) -> StoreProcess& {
            return self.add_store({.host = std::move(host),
                                   .transport = std::move(transport),
                                   .epoch = epoch,
                                   .segment_bytes = segment_bytes});
          },
          nb::kw_only(), "host"_a, "transport"_a, "epoch"_a, "segment_bytes"_a,
          nb::rv_policy::reference_internal)
      .def("corrupt", &World::corrupt, "store"_a);
}

void bind_network(nb::class_<World>& world) {
  world
      .def(
          "set_network",
          [](World& self, std::optional<uint64_t> delay_min_ns,
             std::optional<uint64_t> delay_max_ns, std::optional<uint64_t> bytes_per_s,
             std::optional<double> lost_completions, std::optional<uint64_t> write_chunk_bytes) {
            NetworkConditions& conditions = self.network().conditions;
            conditions.path = changed(conditions.path, delay_min_ns, delay_max_ns, bytes_per_s);
            conditions.lost_completions = lost_completions.value_or(conditions.lost_completions);
            conditions.write_chunk_bytes = write_chunk_bytes.value_or(conditions.write_chunk_bytes);
          },
          nb::kw_only(), "delay_min_ns"_a = nb::none(), "delay_max_ns"_a = nb::none(),
          "bytes_per_s"_a = nb::none(), "lost_completions"_a = nb::none(),
          "write_chunk_bytes"_a = nb::none())
      .def(
          "set_path",
          [](World& self, EngineId source, EngineId target, std::optional<uint64_t> delay_min_ns,
             std::optional<uint64_t> delay_max_ns, std::optional<uint64_t> bytes_per_s) {
            Network& network = self.network();
            const Node& from = node(self, source);
            const Node& to = node(self, target);
            network.set_path(
                from, to, changed(network.path(from, to), delay_min_ns, delay_max_ns, bytes_per_s));
          },
          "source"_a, "target"_a, nb::kw_only(), "delay_min_ns"_a = nb::none(),
          "delay_max_ns"_a = nb::none(), "bytes_per_s"_a = nb::none())
      .def("partition", [](World& self, EngineId a,
                           EngineId b) { self.network().partition(node(self, a), node(self, b)); })
      .def("heal", [](World& self, EngineId a,
                      EngineId b) { self.network().heal(node(self, a), node(self, b)); })
      .def("break_pair",
           [](World& self, EngineId a, EngineId b) {
             self.network().break_pairs(node(self, a), node(self, b));
           })
      .def(
          "fail_posts",
          [](World& self, EngineId engine, uint64_t count) {
            node(self, engine).prepared.posts_to_fail += count;
          },
          "engine"_a, "count"_a)
      .def(
          "lose_completion",
          [](World& self, EngineId engine, uint64_t count) {
            node(self, engine).prepared.completions_to_lose += count;
          },
          "engine"_a, "count"_a = 1)
      .def(
          "tamper",
          [](World& self, EngineId source, const std::string& how, const std::string& message,
             uint32_t count) {
            if (count == 0 || !self.network().tamperings.add(source, how, message, count)) {
              throw std::invalid_argument("unknown tampering or message, or a count of 0");
            }
          },
          "source"_a, "how"_a, nb::kw_only(), "message"_a = "any", "count"_a = 1)
      .def("disarm", [](World& self) { self.network().disarm(); });
}

void bind_outcome(nb::class_<World>& world) {
  world.def("violations", &World::violations)
      .def("check", nb::overload_cast<>(&World::check))
      .def(
          "sabotage",
          [](World& self, const std::string& promise) {
            BrokenPromises& broken = self.network().broken_promises;
            if (promise == "fence-proves-nothing") {
              broken.fence_proves_nothing = true;
            } else if (promise == "closing-proves-nothing") {
              broken.closing_proves_nothing = true;
            } else {
              throw std::invalid_argument("no such promise: " + promise);
            }
          },
          "rule"_a)
      .def("digest", [](World& self) { return self.timeline().digest(); })
      .def("trace", [](World& self) { return self.timeline().trace(); })
      .def("statistics", [](World& self) { return named(self.timeline().statistics); });
}

std::vector<int32_t> tokens_of(std::vector<int32_t> prompt, uint32_t max_tokens,
                               const link::Sampling& sampling, const std::string& model) {
  link::Task task{.prompt = std::move(prompt), .sampling = sampling};
  task.sampling.max_tokens = max_tokens;
  return value_or_raise(oracle(Model(model), task));
}

void bind_oracle(nb::module_& m) {
  m.def(
      "oracle",
      [](std::vector<int32_t> prompt, uint32_t max_tokens, float temperature, uint32_t top_k,
         float top_p, uint64_t seed, uint32_t choice, uint32_t min_tokens, bool ignore_eos,
         std::vector<int32_t> stop_token_ids, const std::string& model) {
        return tokens_of(std::move(prompt), max_tokens,
                         {.temperature = temperature,
                          .top_k = top_k,
                          .top_p = top_p,
                          .seed = seed,
                          .choice = choice,
                          .min_tokens = min_tokens,
                          .ignore_eos = ignore_eos,
                          .stop_token_ids = std::move(stop_token_ids)},
                         model);
      },
      "prompt"_a, "max_tokens"_a, nb::kw_only(), "temperature"_a = 0.0f, "top_k"_a = 0,
      "top_p"_a = 1.0f, "seed"_a = 0, "choice"_a = 0, "min_tokens"_a = 0, "ignore_eos"_a = false,
      "stop_token_ids"_a = std::vector<int32_t>(), "model"_a = "sim");
}

}  // namespace
}  // namespace crossdock::sim

NB_MODULE(crossdock_sim, m) {
  using namespace crossdock::sim;  // NOLINT
  nanobind::set_leak_warnings(false);
  m.attr("START_NS") = kStartNs;
  m.attr("VOCAB_SIZE") = kVocabSize;
  m.attr("EOS_TOKEN_ID") = kEosTokenId;
  m.attr("CONTEXT_TOKENS_MAX") = kContextTokensMax;
  nanobind::dict block_bytes;
  for (const auto dtype : {crossdock::DType::kF32, crossdock::DType::kBf16}) {
    block_bytes[name(dtype).c_str()] = Model("").layout(dtype).block_bytes();
  }
  m.attr("BLOCK_BYTES") = block_bytes;
  m.attr("BLOCK_STRIDE_BYTES") = Model("").layout(crossdock::DType::kF32).stride_bytes();
  bind_views(m);
  nanobind::class_<World> world(m, "World");
  world
      .def(nanobind::init<uint64_t, bool>(), nanobind::arg("seed"), nanobind::kw_only(),
           nanobind::arg("trace") = false)
      .def_prop_ro("now_ns", [](World& self) { return self.timeline().now_ns(); })
      .def("next_ns", &World::next_ns)
      .def("advance", &World::advance, nanobind::arg("until_ns"));
  bind_engines(world);
  bind_stores(m, world);
  bind_network(world);
  bind_outcome(world);
  bind_oracle(m);
}
