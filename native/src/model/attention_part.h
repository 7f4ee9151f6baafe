// The attention of a decoder layer, from normed rows to the residual: grouped queries or a latent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "batch_plan.h"
#include "crossdock/blocks/kv_layout.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/model/model_config.h"
#include "crossdock/sys/thread_pool.h"
#include "decoder_weights.h"
#include "products.h"
#include "rope.h"
#include "rows.h"

namespace crossdock {

// One layer of one step. K and V of all rows are cached; only the rows of `set` look back, and in
// the last layer these are few.
struct AttentionStep {
  uint32_t layer = 0;
  std::byte* slab = nullptr;
  const BatchPlan& plan;
  const RowSet& set;
  Rows x;      // all rows, normed
  Rows set_x;  // the rows of `set`, normed; the same memory where that is all of them
  const float* cosines = nullptr;  // [row of all][half of the rotated part]
  const float* sines = nullptr;
  Rows residual;  // of the rows of `set`: what is added to

  bool is_all() const { return set_x.data == x.data; }
  // Where a row of `set` is among all.
  uint32_t row_in_all(uint32_t row) const { return is_all() ? row : plan.logit_rows[row]; }
};

// What the parts of an executor share.
struct PartTools {
  const ModelConfig& model;
  const kernels::Kernels& kernels;
  ThreadPool& pool;
  Products& products;
};

class AttentionPart {
 public:
  virtual ~AttentionPart() = default;
  virtual void run(const LayerWeights& weights, const AttentionStep& step) = 0;
};

std::unique_ptr<AttentionPart> make_gqa_attention(const PartTools& tools, const KvLayout& layout,
                                                  const HeadGroups& groups, const Rope& rope);
// In the absorbed form (DeepSeek-V2, arXiv 2405.04434, appendix C): each head's share of kv_b_proj
// goes into its query and its output, so attention runs on the latent itself. The rows that the
// plan has as prompts' are expanded (expanded_attention.h).
std::unique_ptr<AttentionPart> make_mla_attention(const PartTools& tools, const KvLayout& layout,
                                                  const HeadGroups& groups, const Rope& rope);

}  // namespace crossdock
