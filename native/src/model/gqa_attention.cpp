#include "attention_part.h"
#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/kv_codec.h"
#include "paged_attention.h"

namespace crossdock {
namespace {

class GqaAttention final : public AttentionPart {
 public:
  GqaAttention(const PartTools& tools, const KvLayout& layout, const HeadGroups& groups,
               const Rope& rope)
      : tools_(tools),
        layout_(layout),
        rope_(rope),
        attention_(tools.kernels, tools.pool, layout, groups, softmax_scale(tools.model)),
        q_size_(tools.model.num_heads * tools.model.head_dim),
        kv_size_(tools.model.num_kv_heads * tools.model.head_dim),
        qkv_size_(q_size_ + 2 * kv_size_) {}

  void run(const LayerWeights& weights, const AttentionStep& step) override;

 private:
  // Of heads of one row: bias, norm, rotation, each where the model has it.
  struct HeadsPart {
    float* heads = nullptr;
    uint32_t num_heads = 0;
    const float* bias = nullptr;
    const std::vector<float>& norm;
    uint32_t row_in_all = 0;
  };

  Rows multiply(const GqaWeights& weights, const AttentionStep& step);
  void finish_heads(const HeadsPart& part, const AttentionStep& step) const;
  void store(float* k, const GqaWeights& weights, const AttentionStep& step, uint32_t row) const;

  const PartTools tools_;
  const KvLayout& layout_;
  const Rope& rope_;
  PagedAttention attention_;
  const uint32_t q_size_;
  const uint32_t kv_size_;
  const uint32_t qkv_size_;
  std::vector<float> qkv_;       // [row][q | k | v]
  std::vector<float> last_qkv_;  // the same of the last layer's few, only q of use
  std::vector<float> context_;   // [row of the set][q]
};

// Returns the queries of the set, as the first part of rows that are as wide as q, k and v.
Rows GqaAttention::multiply(const GqaWeights& weights, const AttentionStep& step) {
  grow(qkv_, size_t{step.x.count} * qkv_size_);
  const Rows all{qkv_.data(), qkv_size_, step.x.count};
  if (step.is_all()) {
    tools_.products.run({.matrix = &weights.qkv, .x = step.x, .y = all});
    return all;
  }
  grow(last_qkv_, size_t{step.set_x.count} * qkv_size_);
  const Rows last{last_qkv_.data(), qkv_size_, step.set_x.count};
  // A panel that holds both the last of q and the first of k is multiplied in both.
  const MatrixProduct products[] = {
      {.matrix = &weights.qkv,
       .x = step.x,
       .y = all,
       .unit_begin = q_size_ / kernels::kPanelOutputs},
      {.matrix = &weights.qkv,
       .x = step.set_x,
       .y = last,
       .unit_end = (q_size_ + kernels::kPanelOutputs - 1) / kernels::kPanelOutputs}};
  tools_.products.run(products);
  return last;
}

void GqaAttention::finish_heads(const HeadsPart& part, const AttentionStep& step) const {
  const uint32_t head_dim = tools_.model.head_dim;
  if (part.bias != nullptr) {
    for (uint32_t i = 0; i < part.num_heads * head_dim; ++i) part.heads[i] += part.bias[i];
  }
  if (!part.norm.empty()) {
    for (uint32_t head = 0; head < part.num_heads; ++head) {
      float* x = part.heads + size_t{head} * head_dim;
      kernels::rms_norm(x, part.norm.data(), head_dim, tools_.model.rms_norm_eps, x);
    }
  }
  const size_t angle = size_t{part.row_in_all} * rope_.half_dim();
  rope_.rotate(part.heads, part.num_heads, head_dim, step.cosines + angle, step.sines + angle);
}

// K and V of one row into its block.
void GqaAttention::store(float* k, const GqaWeights& weights, const AttentionStep& step,
                         uint32_t row) const {
  const uint32_t num_heads = tools_.model.num_kv_heads, head_dim = tools_.model.head_dim;
  const float* bias = weights.qkv_bias.empty() ? nullptr : weights.qkv_bias.data() + q_size_;
  finish_heads({k, num_heads, bias, weights.k_norm, row}, step);
  float* v = k + kv_size_;
  if (bias != nullptr) {
    for (uint32_t i = 0; i < kv_size_; ++i) v[i] += bias[kv_size_ + i];
  }
  const RowPlace& place = step.plan.all.rows[row];
  std::byte* block = step.slab + place.block * layout_.stride_bytes();
  const uint32_t slot = place.position % kBlockTokens;
  const auto type = element_type(layout_.dtype);
  for (uint32_t head = 0; head < num_heads; ++head) {
    kernels::store_k(k + size_t{head} * head_dim, head_dim, slot, type,
                     block + layout_.k_offset(step.layer, head));
    kernels::store_v(v + size_t{head} * head_dim, head_dim, slot, type,
                     block + layout_.v_offset(step.layer, head));
  }
}

void GqaAttention::run(const LayerWeights& layer, const AttentionStep& step) {
  const auto& weights = std::get<GqaWeights>(layer.attention);
  const Rows queries = multiply(weights, step);
  const auto finish_queries = [&](uint32_t row) {
    const float* bias = weights.qkv_bias.empty() ? nullptr : weights.qkv_bias.data();
    finish_heads({queries[row], tools_.model.num_heads, bias, weights.q_norm, step.row_in_all(row)},
                 step);
  };
  for_rows(tools_.pool, step.x.count, [&](uint32_t row) {
    if (step.is_all()) finish_queries(row);
    store(qkv_.data() + size_t{row} * qkv_size_ + q_size_, weights, step, row);
  });
  if (!step.is_all()) for_rows(tools_.pool, queries.count, finish_queries);
  grow(context_, size_t{queries.count} * q_size_);
  const Rows context{context_.data(), q_size_, queries.count};
  attention_.run(step.slab, step.layer, step.set, queries, context);
  tools_.products.run({.matrix = &weights.output,
                       .x = context,
                       .y = step.residual,
                       .epilogue = kernels::Epilogue::kAdd});
}

}  // namespace

std::unique_ptr<AttentionPart> make_gqa_attention(const PartTools& tools, const KvLayout& layout,
                                                  const HeadGroups& groups, const Rope& rope) {
  return std::make_unique<GqaAttention>(tools, layout, groups, rope);
}

}  // namespace crossdock
