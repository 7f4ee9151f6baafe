// Decides what the next step computes. A state machine without IO: events in, a plan out.
//
// It owns the tokens and block tables of every sequence, the block pool's accounts and the prefix
// tree, and it is the only writer of both. No clock (ticks are arguments), thread, random number,
// logging or IO; ties break by arrival order, so one script of events gives one script of plans.
//
// Life of a sequence, by role:
//   local   (prefill and decode here)   submit -> waiting -> running -> finish
//   source  (prefill here, decode there) submit -> waiting -> running -> held (prompt computed,
//           first token known; its blocks are being sent) -> finish
//   target  (prefill there, decode here) reserve -> reserved -> activate -> running -> finish,
//           or reserved -> quarantine -> end_quarantine
// A running local or target sequence may be preempted: its blocks are released and it waits at the
// front of the queue to be recomputed in place, prompt and generated tokens alike. Held sources
// and reserved targets are never preempted, since a peer may be touching their blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "crossdock/blocks/block_pool.h"
#include "crossdock/prefix/block_hash.h"
#include "crossdock/prefix/prefix_tree.h"
#include "crossdock/sys/status.h"

namespace crossdock {

using SequenceId = uint64_t;  // chosen by the caller, unique among the living

enum class SequenceRole : uint8_t { kLocal, kSource, kTarget };
enum class SequenceState : uint8_t { kWaiting, kLoading, kRunning, kHeld, kReserved, kQuarantined };

struct SchedulerConfig {
  uint32_t num_blocks = 0;
  uint32_t token_budget = 2048;  // T: tokens of one step
  // False: a prompt is computed in one step, whatever its length; budget and bound do not cut it.
  bool chunked_prefill = true;
  // A step's chunks are as large as keeps it within this, by what the steps before it took; at
  // least a block, so that prompts get on where the decodes alone exceed it. 0: no bound.
  uint64_t step_ticks_max = 0;
  uint32_t num_sequences_max = 1024;  // running, loading or reserved; at most token_budget
  uint32_t context_tokens_max = 0;    // of the model
  // The tree's eviction: from the high watermark of the pool in use down to the low one.
  double high_watermark = 0.88;
  double low_watermark = 0.80;
  // Quarantined blocks allowed, as a share of the pool; past it new reservations are refused.
  double quarantine_max = 0.25;
};

struct Submission {
  SequenceId id = 0;
  SequenceRole role = SequenceRole::kLocal;  // kLocal or kSource
  std::vector<int32_t> prompt;
  uint32_t max_new_tokens = 0;  // a source computes one
  BlockHash root;               // first link of the sequence's chain
  // Positions from here on are generated ones, whose blocks are of another chain than a prompt's.
  // The default is for numerics to which they are alike.
  uint32_t first_generated = UINT32_MAX;
  // True when an outer tier is being asked: the sequence is not admitted before `load_ready`.
  bool awaits_load = false;
  // True where the peer of a source may hold more of its prompt than the tree: once admitted it is
  // held back until `loaded`, and `load_more` may name blocks meanwhile.
  bool awaits_grant = false;
};

struct Reservation {
  SequenceId id = 0;
  std::vector<int32_t> prompt;
  uint32_t max_new_tokens = 0;
  BlockHash root;
  uint32_t first_generated = UINT32_MAX;  // as in Submission
};

// What a reserved target received: its block table for the prompt, of which the first
// num_matched_blocks are resident and readable, and need not be sent.
struct Grant {
  uint32_t num_matched_blocks = 0;
  std::vector<BlockId> blocks;
};

// One sequence's share of a step. Its tokens are tokens(id)[first_position, +num_tokens).
struct PlanEntry {
  SequenceId id = 0;
  uint32_t slot = 0;  // dense index, valid until the sequence is gone; lets StepDone be O(1)
  uint32_t first_position = 0;
  uint32_t num_tokens = 0;
  bool wants_logits = false;              // the last token of the chunk is the last known token
  uint32_t first_generated = UINT32_MAX;  // of the sequence
};

// Blocks of a sequence to be filled from an outer tier or a peer: block_table(id)[first_block,
// +num_blocks).
struct LoadOrder {
  SequenceId id = 0;
  uint32_t first_block = 0;
  uint32_t num_blocks = 0;
};

struct StepPlan {
  std::vector<PlanEntry> entries;     // decodes first, then chunks, each in arrival order
  std::vector<SequenceId> started;    // admitted by this plan (a source now sends `open`)
  std::vector<LoadOrder> loads;       // post these reads, then report `loaded`
  std::vector<SequenceId> preempted;  // by this plan
  std::vector<SequenceId> revoke;     // reserved targets whose blocks are needed: revoke them
  uint32_t num_decodes = 0;
  bool empty() const { return entries.empty(); }
  void clear();
};

// What came of entries[index] of the plan being completed.
struct TokenResult {
  uint32_t entry_index = 0;
  int32_t token = 0;      // sampled; only for entries that wanted logits
  bool finished = false;  // the sequence ends with this token (the caller then calls finish)
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();

  // INVALID_ARGUMENT when the request can never fit (context, pool), naming the field and bound;
  // ALREADY_EXISTS for a living id.
  Status submit(Submission submission);
  // The outer tier can deliver the first num_blocks of the chain (0: nothing); ends awaits_load.
  void load_ready(SequenceId id, uint32_t num_blocks);
  // The peer of a source can deliver the first num_blocks of the chain. The source is held back and
  // what it lacks of them is to be read; nothing where it lacks none, where a step is computing it,
  // or where it is being loaded already.
  std::optional<LoadOrder> load_more(SequenceId id, uint32_t num_blocks);
  // Of a LoadOrder, the first num_blocks arrived and were verified; the rest is recomputed. Also
  // ends awaits_grant without an order.
  void loaded(SequenceId id, uint32_t num_blocks, uint64_t tick);

  // RESOURCE_EXHAUSTED when the blocks cannot be had now: a grant leaves one block for every
  // running sequence.
  Result<Grant> reserve(Reservation reservation, uint64_t tick);
  // The prompt's bytes are all in and the first token is known: the target runs from here.
  void activate(SequenceId id, int32_t first_token, uint64_t tick);
  // A reserved target ends while writes to it may still land: its unmatched blocks are
  // quarantined until end_quarantine frees them. Until then its matched blocks stay referenced,
  // since the peer may still be reading them.
  void quarantine(SequenceId id);
  void end_quarantine(SequenceId id);

  // The sequence is over (finished, cancelled, failed, sent): its references are dropped. Legal in
  // every state but quarantined; a loading sequence is finished only after its reads ended, or with
  // its blocks pinned until they have.
  void finish(SequenceId id);

  // Plans one step. The plan stays valid until the next call. Between plan and step_done any
  // event may arrive; entries of sequences that are gone by then are ignored.
  const StepPlan& plan(uint64_t tick);
  // Completes the last plan: results are for the entries that wanted logits, in order. The duration
  // is the executor's; 0 where it is not known, and nothing is learnt from it.
  void step_done(std::span<const TokenResult> results, uint64_t tick, uint64_t duration_ticks = 0);

  // A source that was admitted and is held back until its grant is looked at.
  bool awaits_grant(SequenceId id) const;
  bool contains(SequenceId id) const;
  SequenceState state(SequenceId id) const;
  std::span<const int32_t> tokens(SequenceId id) const;
  std::span<const BlockId> block_table(SequenceId id) const;
  // Positions whose KV is in the block table: computed, matched or loaded.
  uint32_t num_computed(SequenceId id) const;
  // Prompt tokens found in the tree (or loaded) when first admitted: the request's cache hit. A
  // recomputation after preemption does not count.
  uint32_t num_cached_tokens(SequenceId id) const;
  // The hashes of the sequence's whole blocks known so far.
  std::span<const BlockHash> chain(SequenceId id) const;

  // What computing these positions of a prompt adds to a step, by the steps so far; 0: none was
  // timed.
  double predicted_prompt_ticks(uint32_t first_position, uint32_t num_tokens) const;

  uint32_t num_running() const;
  uint32_t num_waiting() const;
  // While more blocks are in quarantine nothing is reserved.
  uint32_t quarantined_blocks_max() const;
  bool idle() const;  // a plan would do nothing before the next event
  const BlockPool& pool() const;
  const PrefixTree& tree() const;
  // Takes one more reference on these blocks, held by the caller (a write-back to an outer tier).
  void pin(std::span<const BlockId> blocks);
  void unpin(std::span<const BlockId> blocks);

  // Conservation: pool, tree, tables and pins agree. Aborts with a message otherwise.
  void check() const;

 private:
  struct Impl;  // the owner of this folder may replace this by members
  std::unique_ptr<Impl> impl_;
};

}  // namespace crossdock
