// The engine's loop: inputs, steps, sleep.

#include <algorithm>
#include <cassert>
#include <random>

#include "crossdock/engine/engine.h"
#include "crossdock/transfer/transfer_thread.h"
#include "log.h"

namespace crossdock {
namespace {

// A loop with work that cannot be planned yet (blocks are busy) looks again this often.
constexpr uint64_t kStalledTicks = 10'000;
constexpr uint64_t kOpenWaitTicks = 10'000'000;
// A peer answers between layers, well within one of its steps; eight of them, and two seconds, are
// for a machine that is suddenly busy. Without a bound on steps a layer of a long prompt alone may
// take seconds.
constexpr uint64_t kGraceSteps = 8;
constexpr uint64_t kGraceTicksMin = 2'000'000;
constexpr uint64_t kGraceTicksMax = 10'000'000;

// D answers an open within its own wait, and anything else within a grace.
constexpr uint64_t kAnswerWaitTicks = kOpenWaitTicks + kGraceTicksMax;

uint64_t step_ticks_max(const EngineConfig& config) { return config.step_ms_max * uint64_t{1000}; }

// Peers are taken to be configured alike. A grace that is too short costs a pair, never a byte.
uint64_t quarantine_grace_ticks(const EngineConfig& config) {
  if (!config.chunked_prefill || config.step_ms_max == 0) return kGraceTicksMax;
  return std::clamp(kGraceSteps * step_ticks_max(config), kGraceTicksMin, kGraceTicksMax);
}

uint64_t random_epoch() {
  std::random_device device;
  uint64_t epoch = 0;
  while (epoch == 0) epoch = (uint64_t{device()} << 32) | device();
  return epoch;
}

Status check_pool(const EngineConfig& config, const KvLayout& layout, uint64_t num_blocks) {
  if (num_blocks >= 2 && num_blocks < UINT32_MAX) return {};
  return {StatusCode::kInvalidArgument,
          "kv_memory_bytes: " + std::to_string(config.kv_memory_bytes) + " holds " +
              std::to_string(num_blocks) + " blocks of " + std::to_string(layout.stride_bytes()) +
              " bytes; at least 2 are needed"};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(const EngineConfig& config, EngineLink& link) {
  WeightOptions weights{.dtype = config.weight_dtype,
                        .cache_directory = config.weight_cache_directory,
                        .on_cache_warning = [](const std::string& message) {
                          log_line("warning", "weight_cache", message);
                        }};
  auto executor = load_cpu_executor({.model_directory = config.model_directory,
                                     .weights = std::move(weights),
                                     .kv_dtype = config.kv_dtype,
                                     .mla_prefill = config.mla_prefill,
                                     .num_threads = config.num_threads,
                                     .pin_threads = config.pin_threads,
                                     .kernels = config.kernels});
  if (!executor.ok()) return executor.status();
  const KvLayout& layout = executor.value()->layout();
  const uint64_t num_blocks = config.kv_memory_bytes / layout.stride_bytes();
  Status status = check_pool(config, layout, num_blocks);
  if (!status.ok()) return status;
  auto transport = create_ucx_transport(
      {.transport = config.transport,
       .segment_bytes = num_blocks * layout.stride_bytes() + Staging::bytes(layout),
       .huge_pages = config.huge_pages,
       .bind_interface = config.bind_interface,
       .rdma_device = config.rdma_device,
       .gid_index = config.gid_index},
      random_epoch());
  if (!transport.ok()) {
    const Status& failed = transport.status();
    if (failed.code() != StatusCode::kResourceExhausted) return failed;
    return Status(failed.code(), "kv_memory_bytes is " + std::to_string(config.kv_memory_bytes) +
                                     ", with staging " + failed.message());
  }
  const std::string& staged = transport.value()->descriptor().staged;
  if (!staged.empty()) log_line("warning", "segment_staged", staged);
  auto clock = create_system_clock();
  if (!clock.ok()) return clock.status();
  return std::make_unique<Engine>(config, link, std::move(executor).value(),
                                  std::make_unique<TransferThread>(std::move(transport).value()),
                                  std::move(clock).value());
}

Engine::Engine(const EngineConfig& config, EngineLink& link, std::unique_ptr<Executor> executor,
               std::unique_ptr<Transfers> transfers, std::unique_ptr<Clock> clock)
    : config_(config),
      link_(link),
      executor_(std::move(executor)),
      transfer_(std::move(transfers)),
      clock_(std::move(clock)),
      scheduler_({.num_blocks = static_cast<uint32_t>(
                      (transfer_->segment().size() - Staging::bytes(executor_->layout())) /
                      executor_->layout().stride_bytes()),
                  .token_budget = config.token_budget,
                  .chunked_prefill = config.chunked_prefill,
                  .step_ticks_max = step_ticks_max(config),
                  .num_sequences_max = config.num_sequences_max,
                  .context_tokens_max = executor_->model().context_tokens_max}),
      table_({.verify = config.verify_handoff,
              .open_wait_ticks = kOpenWaitTicks,
              .quarantine_grace_ticks = quarantine_grace_ticks(config),
              .answer_wait_ticks = kAnswerWaitTicks}),
      senders_(executor_->layout(), scheduler_, *transfer_, config.verify_handoff),
      store_(executor_->layout(), scheduler_, *transfer_,
             [this](const link::Event& event) { emit(event); }) {
  const uint32_t num_blocks = scheduler_.pool().num_blocks();
  executor_->bind_slab(transfer_->segment().data(), num_blocks);
  for (const int fd : {link_.wake_fd(), transfer_->event_fd()}) clock_->watch(fd);
  const EndpointDescriptor& descriptor = transfer_->descriptor();
  const auto encoded = encode(descriptor);
  const ModelConfig& model = executor_->model();
  emit(link::Ready{.epoch = descriptor.epoch,
                   .descriptor = {reinterpret_cast<const char*>(encoded.data()), encoded.size()},
                   .layout = encode(format()),
                   .layout_text = executor_->layout().to_string(),
                   .numerics_id = executor_->numerics_id(),
                   .num_blocks = num_blocks,
                   .block_stride_bytes = static_cast<uint32_t>(executor_->layout().stride_bytes()),
                   .context_tokens_max = model.context_tokens_max,
                   .vocab_size = model.vocab_size,
                   .eos_token_ids = model.eos_token_ids});
}

void Engine::emit(const link::Event& event) {
  flush_tokens();
  link_.send(event);
}

void Engine::flush_tokens() {
  if (tokens_.tokens.empty()) return;
  link_.send(tokens_);
  tokens_.tokens.clear();
}

Status Engine::run() {
  while (!stopped_) {
    Status status = pump();
    if (!status.ok()) return status;
    if (!failure_.ok()) return failure_;
    if (stopped_) break;  // nothing else may come that would end a sleep
    if (!scheduler_.idle()) {
      const StepPlan& plan = scheduler_.plan(tick());
      start_sources(plan);
      if (!plan.empty()) {
        step(plan);
        continue;
      }
    }
    flush_tokens();
    sleep();
  }
  flush_tokens();
  return {};
}

Status Engine::pump() {
  link_.count_progress();
  for (;;) {
    auto command = link_.receive();
    if (!command.ok()) return command.status();
    if (!command.value().has_value()) break;
    std::visit([this](auto& c) { on(c); }, *command.value());
  }
  // A completion may lead to a further one at once, so the queue is drained until it is empty.
  while (transfer_->drain(transfer_events_)) {
    std::vector<TransferEvent> events;
    events.swap(transfer_events_);
    for (TransferEvent& event : events) {
      std::visit([this](auto& e) { on(e); }, event);
    }
  }
  const uint64_t now = tick();
  if (table_.next_tick() <= now) tell(handoff_event::Tick{});
  if (senders_.next_tick() <= now) senders_.expire(now);
  if (store_.next_tick() <= now) {
    for (const PeerId store : store_.expire(now)) {
      break_pair(store, Status(StatusCode::kDeadlineExceeded, "the kvstore does not answer"));
    }
  }
  // The first tokens of handoffs that were committed: not behind the step that makes the second.
  flush_tokens();
  link_.flush();
  return {};
}

void Engine::sleep() {
  const uint64_t now = tick();
  uint64_t wake = std::min({table_.next_tick(), store_.next_tick(), senders_.next_tick()});
  if (!scheduler_.idle()) wake = std::min(wake, now + kStalledTicks);
  if (!link_.flush()) wake = std::min(wake, now + 1000);
  int timeout_ms = -1;
  if (wake != UINT64_MAX) {
    const uint64_t ticks = wake > now ? wake - now : 0;
    timeout_ms = static_cast<int>(std::min<uint64_t>((ticks + 999) / 1000, 60'000));
  }
  if (!link_.prepare_sleep()) return link_.finish_sleep();
  clock_->wait(timeout_ms);
  link_.finish_sleep();
}

// Acts on what a plan says beside its entries.
void Engine::start_sources(const StepPlan& plan) {
  for (const LoadOrder& order : plan.loads) store_.load(order, tick());
  for (const SequenceId id : plan.started) {
    auto it = requests_.find(id);
    if (it == requests_.end()) continue;
    store_.started(id);
    Request& request = it->second;
    if (request.started_ns == 0) request.started_ns = now_ns();
    if (request.kind != RequestKind::kSender) continue;
    const HandoffId handoff = request.handoff;
    tell(handoff_event::Begin{handoff});
    if (senders_.find(handoff) != nullptr) senders_.opened(handoff, tick());
  }
  for (const SequenceId id : plan.revoke) {
    fail(id, Status(StatusCode::kResourceExhausted,
                    "the reservation was revoked: its blocks are needed by running sequences"));
  }
}

void Engine::prepare_batch(const StepPlan& plan) {
  batch_.clear();
  results_.clear();
  choices_.clear();
  sent_chunks_.clear();
  for (const PlanEntry& entry : plan.entries) {
    const auto tokens = scheduler_.tokens(entry.id);
    const auto table = scheduler_.block_table(entry.id);
    batch_.push_back({.tokens = tokens.subspan(entry.first_position, entry.num_tokens),
                      .first_position = entry.first_position,
                      .block_table = table,
                      .wants_logits = entry.wants_logits,
                      .first_generated = entry.first_generated});
    auto it = requests_.find(entry.id);
    if (it == requests_.end() || it->second.kind != RequestKind::kSender) continue;
    const uint32_t end = entry.first_position + entry.num_tokens;
    const uint32_t num_whole = end / kBlockTokens;
    const uint32_t used = end % kBlockTokens;
    const bool sends_part = entry.wants_logits && used != 0;
    if (sends_part) executor_->zero_tail(table[num_whole], used);
    sent_chunks_.push_back({it->second.handoff, num_whole + sends_part});
  }
}

void Engine::step(const StepPlan& plan) {
  prepare_batch(plan);
  const uint64_t begin_tick = tick();
  in_step_ = true;
  link_.set_in_step(true);
  const auto logits = executor_->run(batch_, [this](uint32_t layer) { on_layer(layer); });
  in_step_ = false;
  const size_t vocab_size = executor_->model().vocab_size;
  size_t row = 0;
  for (uint32_t i = 0; i < plan.entries.size(); ++i) {
    num_computed_tokens_ += plan.entries[i].num_tokens;
    if (!plan.entries[i].wants_logits) continue;
    sample_row(plan.entries[i], i, logits.subspan(row++ * vocab_size, vocab_size));
  }
  ++num_steps_;
  finish_step(plan, tick() - begin_tick);
  link_.set_in_step(false);
}

void Engine::on_layer(uint32_t layer) {
  link_.count_progress();
  Status status = pump();
  if (!status.ok() && failure_.ok()) failure_ = std::move(status);
  for (const SentChunk& chunk : sent_chunks_) {
    if (senders_.find(chunk.handoff) != nullptr) {
      senders_.post_layers(chunk.handoff, chunk.end_block, layer + 1);
    }
  }
}

void Engine::sample_row(const PlanEntry& entry, uint32_t entry_index, std::span<const float> row) {
  TokenResult result{.entry_index = entry_index, .finished = true};
  ChoiceState choice;
  auto it = requests_.find(entry.id);
  if (it != requests_.end()) {
    Request& request = it->second;
    const uint32_t position = entry.first_position + entry.num_tokens;
    result.token = sample(row, request.sampling, position, banned_at(request, position));
    result.finished = finish_of(request, result.token, position,
                                executor_->model().context_tokens_max) != link::Finish::kNone;
    const LogitDigest bits = request.wants_digests ? digest(row) : LogitDigest{};
    choice = {result.token, bits.low, bits.high};
    if (request.computed_ns == 0) request.computed_ns = now_ns();
  }
  results_.push_back(result);
  choices_.push_back(choice);
}

void Engine::finish_step(const StepPlan& plan, uint64_t duration_ticks) {
  // The plan's storage is the scheduler's, and what follows may plan again; ids are copied out.
  std::vector<PlanEntry> entries(plan.entries.begin(), plan.entries.end());
  scheduler_.step_done(results_, tick(), duration_ticks);
  for (const SequenceId id : to_release_) scheduler_.finish(id);
  to_release_.clear();
  for (const PlanEntry& entry : entries) {
    auto it = requests_.find(entry.id);
    if (it == requests_.end() || entry.wants_logits) continue;
    if (it->second.kind == RequestKind::kSender) senders_.post_complete(it->second.handoff, tick());
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    const PlanEntry& entry = entries[results_[i].entry_index];
    auto it = requests_.find(entry.id);
    if (it == requests_.end()) continue;
    Request& request = it->second;
    if (request.kind == RequestKind::kSender) {
      const HandoffId handoff = request.handoff;
      offer_to_store(entry.id);
      senders_.post_rest(handoff, choices_[i]);
      settle(handoff);
    } else {
      accept_token(request, results_[i].token, entry.first_position + entry.num_tokens,
                   {choices_[i].digest_low, choices_[i].digest_high});
    }
  }
  flush_tokens();
}

// The prompt's whole blocks, which are final now.
void Engine::offer_to_store(SequenceId id) {
  if (!config_.store || peers_.store() == nullptr || !scheduler_.contains(id)) return;
  const uint32_t num_blocks = scheduler_.num_computed(id) / kBlockTokens;
  store_.offer(scheduler_.chain(id).first(num_blocks), scheduler_.block_table(id).first(num_blocks),
               tick());
}

void Engine::accept_token(Request& request, int32_t token, uint32_t position,
                          const LogitDigest& bits) {
  if (!request.started) {
    request.started = true;
    link::Started started{.sequence_id = request.sequence_id,
                          .num_cached_tokens = scheduler_.num_cached_tokens(request.sequence_id)};
    if (request.started_ns != 0) {
      started.queue_ns = request.started_ns - request.accepted_ns;
      started.prefill_ns = request.computed_ns - request.started_ns;
    }
    emit(started);
  }
  const link::Finish finish =
      finish_of(request, token, position, executor_->model().context_tokens_max);
  tokens_.tokens.push_back({.sequence_id = request.sequence_id,
                            .token = token,
                            .position = position,
                            .digest_low = bits.low,
                            .digest_high = bits.high,
                            .finish = finish});
  ++num_generated_tokens_;
  if (finish != link::Finish::kNone) end_request(request.sequence_id);
}

}  // namespace crossdock
