// Attention of a prompt's positions in MLA's expanded form: on every head's own keys and values,
// made from the latents of all positions before, as they are read back from the cache.
//
// Theory of operation. The unit of work is one head of one prompt's rows. Run by run (attention.h)
// its thread expands the run's keys and values into memory of its own, all rows attend to them, and
// the next run takes their place. So memory grows with neither context nor heads, and each thread's
// share stays in its second-level cache (V3: 640 KiB). The price is that every chunk expands the
// positions before it again. Products, scores and sums are those of the other forms, and runs merge
// in order, so a row's bits depend on its position and what is before it alone.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_part.h"

namespace crossdock {

class ExpandedAttention {
 public:
  ExpandedAttention(const PartTools& tools, const KvLayout& layout, float scale);

  // The rows of step.set.prompts. A row of `queries` holds every head's [nope | rope], rotated; one
  // of `out` every head's weighted values.
  void run(const MlaWeights& weights, const AttentionStep& step, const Rows& queries,
           const Rows& out);

 private:
  struct Pass {
    const MlaWeights& weights;
    const AttentionStep& step;
    const Rows& queries;
    const Rows& out;
  };
  // A thread's memory.
  struct Scratch {
    std::vector<float> latents;  // of a block: [slot][latent]
    std::vector<float> keys;     // of a block: [slot][nope_stride_]
    std::vector<float> run;      // [block]: K as [dim][slot], then V as [slot][value_stride_]
    std::vector<float> product;
    std::vector<float> tile;  // state of a tile's rows over one run, and what `attend` needs
    std::vector<float> rows;  // state of all rows
  };
  // Positions [begin, begin + num_slots) of a prompt.
  struct RunSlots {
    uint32_t begin = 0;
    uint32_t num_slots = 0;
  };

  void prepare(uint32_t num_rows_max);
  void run_head(const Pass& pass, const PromptRows& prompt, uint32_t head, Scratch& scratch) const;
  void expand(const Pass& pass, const PromptRows& prompt, const RunSlots& run, uint32_t head,
              Scratch& scratch) const;
  void multiply(const PackedMatrix& matrix, uint32_t num_slots, const Rows& y,
                Scratch& scratch) const;
  void attend(const Pass& pass, const PromptRows& prompt, const RunSlots& run, uint32_t head,
              Scratch& scratch) const;
  size_t block_floats() const { return size_t{kBlockTokens} * (key_dim_ + value_stride_); }

  const kernels::Kernels& kernels_;
  ThreadPool& pool_;
  const KvLayout& layout_;
  const MlaConfig& mla_;
  const uint32_t num_heads_;
  const float scale_;
  const uint32_t key_dim_;
  // The kernels take dimensions in eights; what is added is zero.
  const uint32_t nope_stride_;
  const uint32_t value_stride_;
  std::vector<Scratch> scratch_;  // a thread; none before the first prompt
};

}  // namespace crossdock
