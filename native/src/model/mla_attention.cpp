#include <cstring>

#include "attention_part.h"
#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/kv_codec.h"
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
        num_heads_(tools.model.num_heads),
        query_dim_(mla_.nope_dim + mla_.rope_dim),
        key_dim_(mla_.latent_rank + mla_.rope_dim) {
    products_.resize(num_heads_);
  }

  void run(const LayerWeights& weights, const AttentionStep& step) override;

 private:
  Rows rows(std::vector<float>& memory, uint32_t count, uint32_t width) {
    grow(memory, size_t{count} * width);
    return {memory.data(), width, count};
  }
  void project(const MlaWeights& weights, const AttentionStep& step);
  void cache(const MlaWeights& weights, const AttentionStep& step);
  void absorb_keys(const MlaWeights& weights, const AttentionStep& step);
  void absorb_values(const MlaWeights& weights);

  const PartTools tools_;
  const MlaConfig& mla_;
  const KvLayout& layout_;
  const Rope& rope_;
  PagedAttention attention_;
  const uint32_t num_heads_;
  const uint32_t query_dim_;
  const uint32_t key_dim_;
  std::vector<MatrixProduct> products_;  // a head
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

void MlaAttention::absorb_keys(const MlaWeights& weights, const AttentionStep& step) {
  latent_q_ = rows(latent_q_memory_, q_.count, num_heads_ * key_dim_);
  for_rows(tools_.pool, q_.count, [&](uint32_t row) {
    const size_t angle = size_t{step.row_in_all(row)} * rope_.half_dim();
    float* rope = q_[row] + mla_.nope_dim;
    rope_.rotate(rope, num_heads_, query_dim_, step.cosines + angle, step.sines + angle);
    float* to = latent_q_[row] + mla_.latent_rank;
    for (uint32_t head = 0; head < num_heads_; ++head) {
      std::memcpy(to + size_t{head} * key_dim_, rope + size_t{head} * query_dim_,
                  mla_.rope_dim * sizeof(float));
    }
  });
  for (uint32_t head = 0; head < num_heads_; ++head) {
    products_[head] = {.matrix = &weights.key[head],
                       .x = {q_.data + size_t{head} * query_dim_, q_.stride, q_.count},
                       .y = {latent_q_.data + size_t{head} * key_dim_, latent_q_.stride, q_.count}};
  }
  tools_.products.run(products_);
}

void MlaAttention::absorb_values(const MlaWeights& weights) {
  context_ = rows(context_memory_, q_.count, num_heads_ * mla_.value_dim);
  for (uint32_t head = 0; head < num_heads_; ++head) {
    products_[head] = {
        .matrix = &weights.value[head],
        .x = {latent_out_.data + size_t{head} * mla_.latent_rank, latent_out_.stride, q_.count},
        .y = {context_.data + size_t{head} * mla_.value_dim, context_.stride, q_.count}};
  }
  tools_.products.run(products_);
}

void MlaAttention::run(const LayerWeights& layer, const AttentionStep& step) {
  const auto& weights = std::get<MlaWeights>(layer.attention);
  project(weights, step);
  cache(weights, step);
  if (q_.count == 0) return;
  absorb_keys(weights, step);
  latent_out_ = rows(latent_out_memory_, q_.count, num_heads_ * mla_.latent_rank);
  attention_.run(step.slab, step.layer, step.set, latent_q_, latent_out_);
  absorb_values(weights);
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
