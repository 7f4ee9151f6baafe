#include <cstring>

#include "attention_part.h"
#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/kv_codec.h"
#include "expanded_attention.h"
#include "paged_attention.h"

namespace crossdock {
namespace {

// Of the norms inside latent attention, whatever rms_norm_eps says.
constexpr float kLatentNormEps = 1e-6f;

class MlaAttention final : public AttentionPart {
 public:
  MlaAttention(const PartTools& tools, const KvLayout& layout, const HeadGroups& groups,
               const Rope& rope)
      : tools_(tools),
        mla_(tools.model.mla),
        layout_(layout),
        rope_(rope),
        attention_(tools.kernels, tools.pool, layout, groups, softmax_scale(tools.model)),
        expanded_(tools, layout, softmax_scale(tools.model)),
        num_heads_(tools.model.num_heads),
        query_dim_(mla_.nope_dim + mla_.rope_dim),
        key_dim_(mla_.latent_rank + mla_.rope_dim) {}

  void run(const LayerWeights& weights, const AttentionStep& step) override;

 private:
  Rows rows(std::vector<float>& memory, uint32_t count, uint32_t width) {
    grow(memory, size_t{count} * width);
    return {memory.data(), width, count};
  }
  void project(const MlaWeights& weights, const AttentionStep& step);
  void cache(const MlaWeights& weights, const AttentionStep& step);
  void rotate_query(const AttentionStep& step, uint32_t row);
  void attend_absorbed(const MlaWeights& weights, const AttentionStep& step);
  void absorb_keys(const MlaWeights& weights, const AttentionStep& step);
  void absorb_values(const MlaWeights& weights, const RowSet& set);
  void attend_expanded(const MlaWeights& weights, const AttentionStep& step);

  const PartTools tools_;
  const MlaConfig& mla_;
  const KvLayout& layout_;
  const Rope& rope_;
  PagedAttention attention_;
  ExpandedAttention expanded_;
  const uint32_t num_heads_;
  const uint32_t query_dim_;
  const uint32_t key_dim_;
  std::vector<MatrixProduct> products_;
  std::vector<float> kv_memory_;
  std::vector<float> q_low_memory_;
  std::vector<float> q_memory_;
  std::vector<float> latent_q_memory_;
  std::vector<float> latent_out_memory_;
  std::vector<float> context_memory_;
  Rows kv_;          // [row][latent | rope]
  Rows q_;           // [row of the set][head][nope | rope]
  Rows latent_q_;    // [row of the set][head][latent | rope]
  Rows latent_out_;  // [row of the set][head][latent]
  Rows context_;     // [row of the set][head][value]
};

// The latents of all rows and the queries of the set.
void MlaAttention::project(const MlaWeights& weights, const AttentionStep& step) {
  const uint32_t count = step.set_x.count;
  kv_ = rows(kv_memory_, step.x.count, key_dim_);
  q_ = rows(q_memory_, count, num_heads_ * query_dim_);
  const bool low_rank = mla_.q_rank > 0;
  const Rows q_low = low_rank ? rows(q_low_memory_, count, mla_.q_rank) : q_;
  const MatrixProduct products[] = {
      {.matrix = &weights.kv_a, .x = step.x, .y = kv_},
      {.matrix = low_rank ? &weights.q_a : &weights.q_b, .x = step.set_x, .y = q_low}};
  tools_.products.run(products);
  if (!low_rank) return;
  for_rows(tools_.pool, count, [&](uint32_t row) {
    kernels::rms_norm(q_low[row], weights.q_a_norm.data(), mla_.q_rank, kLatentNormEps, q_low[row]);
  });
  tools_.products.run({.matrix = &weights.q_b, .x = q_low, .y = q_});
}

void MlaAttention::cache(const MlaWeights& weights, const AttentionStep& step) {
  const kernels::LatentForm form{element_type(layout_.dtype), mla_.latent_rank, mla_.rope_dim};
  for_rows(tools_.pool, kv_.count, [&](uint32_t row) {
    float* latent = kv_[row];
    float* rope = latent + mla_.latent_rank;
    kernels::rms_norm(latent, weights.kv_a_norm.data(), mla_.latent_rank, kLatentNormEps, latent);
    const size_t angle = size_t{row} * rope_.half_dim();
    rope_.rotate(rope, 1, 0, step.cosines + angle, step.sines + angle);
    const RowPlace& place = step.plan.all.rows[row];
    kernels::store_latent_row(latent, rope, form,
                              step.slab + place.block * layout_.stride_bytes() +
                                  layout_.row_offset(step.layer, place.position % kBlockTokens));
  });
}

void MlaAttention::rotate_query(const AttentionStep& step, uint32_t row) {
  const size_t angle = size_t{step.row_in_all(row)} * rope_.half_dim();
  rope_.rotate(q_[row] + mla_.nope_dim, num_heads_, query_dim_, step.cosines + angle,
               step.sines + angle);
}

void MlaAttention::attend_absorbed(const MlaWeights& weights, const AttentionStep& step) {
  const uint32_t end = step.set.task_rows.back().end;
  latent_q_ = rows(latent_q_memory_, end, num_heads_ * key_dim_);
  latent_out_ = rows(latent_out_memory_, end, num_heads_ * mla_.latent_rank);
  absorb_keys(weights, step);
  attention_.run(step.slab, step.layer, step.set, latent_q_, latent_out_);
  absorb_values(weights, step.set);
}

void MlaAttention::absorb_keys(const MlaWeights& weights, const AttentionStep& step) {
  products_.clear();
  for (const RowRange& range : step.set.task_rows) {
    for_rows(tools_.pool, range.size(), [&](uint32_t i) {
      const uint32_t row = range.begin + i;
      rotate_query(step, row);
      const float* rope = q_[row] + mla_.nope_dim;
      float* to = latent_q_[row] + mla_.latent_rank;
      for (uint32_t head = 0; head < num_heads_; ++head) {
        std::memcpy(to + size_t{head} * key_dim_, rope + size_t{head} * query_dim_,
                    mla_.rope_dim * sizeof(float));
      }
    });
    for (uint32_t head = 0; head < num_heads_; ++head) {
      products_.push_back(
          {.matrix = &weights.key[head],
           .x = {q_[range.begin] + size_t{head} * query_dim_, q_.stride, range.size()},
           .y = {latent_q_[range.begin] + size_t{head} * key_dim_, latent_q_.stride,
                 range.size()}});
    }
  }
  tools_.products.run(products_);
}

void MlaAttention::absorb_values(const MlaWeights& weights, const RowSet& set) {
  products_.clear();
  for (const RowRange& range : set.task_rows) {
    for (uint32_t head = 0; head < num_heads_; ++head) {
      products_.push_back({.matrix = &weights.value[head],
                           .x = {latent_out_[range.begin] + size_t{head} * mla_.latent_rank,
                                 latent_out_.stride, range.size()},
                           .y = {context_[range.begin] + size_t{head} * mla_.value_dim,
                                 context_.stride, range.size()}});
    }
  }
  tools_.products.run(products_);
}

void MlaAttention::attend_expanded(const MlaWeights& weights, const AttentionStep& step) {
  for (const PromptRows& prompt : step.set.prompts) {
    for_rows(tools_.pool, prompt.num_rows,
             [&](uint32_t i) { rotate_query(step, prompt.first_row + i); });
  }
  expanded_.run(weights, step, q_, context_);
}

void MlaAttention::run(const LayerWeights& layer, const AttentionStep& step) {
  const auto& weights = std::get<MlaWeights>(layer.attention);
  project(weights, step);
  cache(weights, step);
  if (q_.count == 0) return;
  context_ = rows(context_memory_, q_.count, num_heads_ * mla_.value_dim);
  if (!step.set.task_rows.empty()) attend_absorbed(weights, step);
  if (!step.set.prompts.empty()) attend_expanded(weights, step);
  tools_.products.run({.matrix = &weights.output,
                       .x = context_,
                       .y = step.residual,
                       .epilogue = kernels::Epilogue::kAdd});
}

}  // namespace

std::unique_ptr<AttentionPart> make_mla_attention(const PartTools& tools, const KvLayout& layout,
                                                  const HeadGroups& groups, const Rope& rope) {
  return std::make_unique<MlaAttention>(tools, layout, groups, rope);
}

}  // namespace crossdock
