#include "weight_planner.h"

#include <initializer_list>
#include <utility>

namespace crossdock {
namespace {

Status first_error(std::initializer_list<Status> statuses) {
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status WeightPlanner::plan(const WeightOptions& options) {
  expands_latents_ = options.expands_latents;
  if (Status status = plan_decoder(); !status.ok()) return status;
  for (auto& plan : plans_) plan.to->format = format_for(options.dtype, plan);
  weights_.dtype = dtype_name(plans_);
  arena_bytes_ = place(plans_);
  return {};
}

void WeightPlanner::bind(const std::byte* arena) {
  for (auto& plan : plans_) plan.to->panels = arena + plan.offset;
  if (config_.tie_word_embeddings) weights_.head = weights_.embedding;
}

Status WeightPlanner::plan_decoder() {
  const uint64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  Status status = add(MatrixRole::kVocabulary, weights_.embedding, hidden,
                      {{"model.embed_tokens.weight", vocab}});
  if (!status.ok()) return status;
  const Tensor& embedding = *plans_.back().parts[0].tensor;
  weights_.layers.resize(config_.num_layers);
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (status = plan_layer(layer); !status.ok()) return status;
  }
  status = reader_.vector("model.norm.weight", hidden, weights_.final_norm);
  if (!status.ok()) return status;
  if (!config_.tie_word_embeddings) {
    status = add(MatrixRole::kVocabulary, weights_.head, hidden, {{"lm_head.weight", vocab}});
    if (!status.ok()) return status;
  }
  return reader_.check_all_used(config_.architecture, config_.num_layers, embedding);
}

// A packed matrix of one tensor after the other.
Status WeightPlanner::add(MatrixRole role, PackedMatrix& to, uint64_t depth,
                          const std::vector<Wanted>& wanted) {
  MatrixPlan plan{.to = &to, .role = role};
  to.depth = static_cast<uint32_t>(depth);
  for (const auto& [name, outputs] : wanted) {
    auto part = reader_.matrix(name, outputs, depth);
    if (!part.ok()) return part.status();
    to.num_outputs += part.value().num_outputs;
    plan.parts.push_back(part.value());
  }
  plans_.push_back(std::move(plan));
  return {};
}

Status WeightPlanner::plan_layer(uint32_t index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  LayerWeights& layer = weights_.layers[index];
  const uint64_t hidden = config_.hidden_size;
  Status status = first_error(
      {reader_.vector(prefix + "input_layernorm.weight", hidden, layer.attention_norm),
       reader_.vector(prefix + "post_attention_layernorm.weight", hidden, layer.mlp_norm)});
  if (!status.ok()) return status;
  status = config_.attention == ModelConfig::Attention::kMla
               ? plan_mla(prefix + "self_attn.", layer.attention.emplace<MlaWeights>())
               : plan_gqa(prefix + "self_attn.", layer.attention.emplace<GqaWeights>());
  if (!status.ok()) return status;
  const bool routed = index < config_.is_moe.size() && config_.is_moe[index];
  if (routed) return plan_moe(prefix + "mlp.", layer.mlp.emplace<MoeWeights>());
  return plan_mlp(prefix + "mlp.", config_.intermediate_size, layer.mlp.emplace<MlpWeights>());
}

Status WeightPlanner::plan_gqa(const std::string& prefix, GqaWeights& gqa) {
  const uint64_t q_size = uint64_t{config_.num_heads} * config_.head_dim;
  const uint64_t kv_size = uint64_t{config_.num_kv_heads} * config_.head_dim;
  const Wanted parts[] = {
      {prefix + "q_proj", q_size}, {prefix + "k_proj", kv_size}, {prefix + "v_proj", kv_size}};
  std::vector<Wanted> wanted;
  for (const auto& [name, size] : parts) {
    wanted.push_back({name + ".weight", size});
    if (!config_.qkv_bias) continue;
    if (Status status = reader_.vector(name + ".bias", size, gqa.qkv_bias); !status.ok()) {
      return status;
    }
  }
  if (config_.qk_norm) {
    Status status =
        first_error({reader_.vector(prefix + "q_norm.weight", config_.head_dim, gqa.q_norm),
                     reader_.vector(prefix + "k_norm.weight", config_.head_dim, gqa.k_norm)});
    if (!status.ok()) return status;
  }
  return first_error({add(MatrixRole::kLayer, gqa.qkv, config_.hidden_size, wanted),
                      add(MatrixRole::kLayer, gqa.output, q_size,
                          {{prefix + "o_proj.weight", config_.hidden_size}})});
}

Status WeightPlanner::plan_mla(const std::string& prefix, MlaWeights& mla) {
  const MlaConfig& dims = config_.mla;
  const uint64_t hidden = config_.hidden_size, heads = config_.num_heads;
  const uint64_t q_size = heads * (dims.nope_dim + dims.rope_dim);
  Status status;
  if (dims.q_rank == 0) {
    status = add(MatrixRole::kLayer, mla.q_b, hidden, {{prefix + "q_proj.weight", q_size}});
  } else {
    status = first_error(
        {add(MatrixRole::kLayer, mla.q_a, hidden, {{prefix + "q_a_proj.weight", dims.q_rank}}),
         reader_.vector(prefix + "q_a_layernorm.weight", dims.q_rank, mla.q_a_norm),
         add(MatrixRole::kLayer, mla.q_b, dims.q_rank, {{prefix + "q_b_proj.weight", q_size}})});
  }
  if (!status.ok()) return status;
  return first_error(
      {add(MatrixRole::kLayer, mla.kv_a, hidden,
           {{prefix + "kv_a_proj_with_mqa.weight", uint64_t{dims.latent_rank} + dims.rope_dim}}),
       reader_.vector(prefix + "kv_a_layernorm.weight", dims.latent_rank, mla.kv_a_norm),
       plan_latent(prefix, mla),
       add(MatrixRole::kLayer, mla.output, heads * dims.value_dim,
           {{prefix + "o_proj.weight", hidden}})});
}

// kv_b_proj holds, head after head, nope_dim rows for the keys and value_dim rows for the values.
Status WeightPlanner::plan_latent(const std::string& prefix, MlaWeights& mla) {
  const MlaConfig& dims = config_.mla;
  const uint64_t head_rows = uint64_t{dims.nope_dim} + dims.value_dim;
  auto whole =
      reader_.matrix(prefix + "kv_b_proj.weight", config_.num_heads * head_rows, dims.latent_rank);
  if (!whole.ok()) return whole.status();
  mla.key.resize(config_.num_heads);
  mla.value.resize(config_.num_heads);
  if (expands_latents_) mla.expand.resize(config_.num_heads);
  for (uint32_t head = 0; head < config_.num_heads; ++head) {
    MatrixPart key = whole.value();
    key.first_row = head * head_rows;
    key.num_outputs = dims.latent_rank;
    key.transposed = true;
    mla.key[head] = {.depth = dims.nope_dim, .num_outputs = dims.latent_rank};
    plans_.push_back({.to = &mla.key[head], .role = MatrixRole::kLatent, .parts = {key}});
    MatrixPart value = whole.value();
    value.first_row = head * head_rows + dims.nope_dim;
    value.num_outputs = dims.value_dim;
    mla.value[head] = {.depth = dims.latent_rank, .num_outputs = dims.value_dim};
    plans_.push_back({.to = &mla.value[head], .role = MatrixRole::kLatent, .parts = {value}});
    if (!expands_latents_) continue;
    MatrixPart expand = whole.value();
    expand.first_row = head * head_rows;
    expand.num_outputs = dims.nope_dim;
    mla.expand[head] = {.depth = dims.latent_rank, .num_outputs = dims.nope_dim};
    plans_.push_back({.to = &mla.expand[head], .role = MatrixRole::kLatent, .parts = {expand}});
  }
  return {};
}

Status WeightPlanner::plan_mlp(const std::string& prefix, uint64_t inner, MlpWeights& mlp) {
  const uint64_t hidden = config_.hidden_size;
  Status status = add(MatrixRole::kLayer, mlp.gate_up, hidden,
                      {{prefix + "gate_proj.weight", inner}, {prefix + "up_proj.weight", inner}});
  if (!status.ok()) return status;
  plans_.back().interleaved = true;
  mlp.gate_up.num_outputs = static_cast<uint32_t>(inner);
  return add(MatrixRole::kLayer, mlp.down, inner, {{prefix + "down_proj.weight", hidden}});
}

Status WeightPlanner::plan_moe(const std::string& prefix, MoeWeights& moe) {
  const MoeConfig& dims = config_.moe;
  Status status = add(MatrixRole::kRouter, moe.router, config_.hidden_size,
                      {{prefix + "gate.weight", dims.num_experts}});
  if (!status.ok()) return status;
  if (dims.selection == MoeConfig::Selection::kGroupTopTwo) {
    status = reader_.vector(prefix + "gate.e_score_correction_bias", dims.num_experts,
                            moe.correction_bias);
    if (!status.ok()) return status;
  }
  moe.experts.resize(dims.num_experts);
  for (uint32_t expert = 0; expert < dims.num_experts; ++expert) {
    status = plan_mlp(prefix + "experts." + std::to_string(expert) + ".", dims.intermediate_size,
                      moe.experts[expert]);
    if (!status.ok()) return status;
  }
  if (dims.shared_intermediate_size == 0) return {};
  return plan_mlp(prefix + "shared_experts.", dims.shared_intermediate_size, moe.shared);
}

}  // namespace crossdock
