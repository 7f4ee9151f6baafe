// A decoder on the CPU, put together from parts.
//
// A step: embed the rows; then per layer norm, attention onto the residual (attention_part.h),
// norm, MLP onto the residual (mlp_part.h); at last norm and head of the rows that want logits.
// The last layer caches K and V of every row, and does the rest for the rows that want logits
// alone. Each part is a few fork-joins over units whose results do not depend on who computes them.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "attention_part.h"
#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/model/executor.h"
#include "crossdock/sys/thread_pool.h"
#include "decoder_weights.h"
#include "mlp_part.h"

namespace crossdock {
namespace {

KvLayout make_layout(const ModelConfig& model, const Fingerprint& fingerprint, DType kv_dtype) {
  KvLayout layout;
  layout.model = fingerprint;
  layout.num_layers = model.num_layers;
  layout.num_kv_heads = model.num_kv_heads;
  layout.dtype = kv_dtype;
  if (model.attention == ModelConfig::Attention::kMla) {
    layout.kind = KvKind::kMla;
    layout.head_dim = model.mla.latent_rank;
    layout.rope_dim = model.mla.rope_dim;
  } else {
    layout.head_dim = model.head_dim;
  }
  return layout;
}

uint32_t depth_max(const ModelConfig& model) {
  const MlaConfig& mla = model.mla;
  return std::max({model.hidden_size, model.intermediate_size, model.num_heads * model.head_dim,
                   model.num_heads * mla.value_dim, mla.q_rank, mla.latent_rank, mla.nope_dim,
                   model.moe.intermediate_size, model.moe.shared_intermediate_size});
}

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(ModelConfig model, DecoderWeights weights, const kernels::Kernels& kernels,
              const ExecutorConfig& config, std::unique_ptr<ThreadPool> pool);

  const ModelConfig& model() const override { return model_; }
  const KvLayout& layout() const override { return layout_; }
  std::string numerics_id() const override;
  void bind_slab(std::byte* slab, uint32_t num_blocks) override;
  std::span<const float> run(std::span<const BatchItem> batch,
                             const LayerCallback& on_layer) override;
  void zero_tail(BlockId block, uint32_t num_used_slots) override;

 private:
  static Rows rows(std::vector<float>& memory, uint32_t count, uint32_t width);
  void embed();
  Rows norm(const Rows& x, const std::vector<float>& weight, std::vector<float>& memory);
  Rows gather(const Rows& x, std::vector<float>& memory);
  void run_layer(uint32_t layer);
  std::span<const float> compute_logits();

  const ModelConfig model_;
  const DecoderWeights weights_;
  const KvLayout layout_;
  const MlaPrefill mla_prefill_;
  std::unique_ptr<ThreadPool> pool_;
  const HeadGroups groups_;
  const Rope rope_;
  Products products_;
  const PartTools tools_;
  std::unique_ptr<AttentionPart> attention_;
  DenseMlp dense_;
  MoeMlp moe_;
  std::byte* slab_ = nullptr;
  uint32_t num_blocks_ = 0;
  BatchPlan plan_;
  Rows residual_;  // [row][hidden]; past the last layer's attention only rows that want logits
  std::vector<float> residual_memory_;
  std::vector<float> last_residual_memory_;
  std::vector<float> normed_memory_;
  std::vector<float> last_normed_memory_;
  std::vector<float> cosines_;  // [row][half of the rotated part]
  std::vector<float> sines_;
  std::vector<float> logits_;  // [logit row][vocab]
};

CpuExecutor::CpuExecutor(ModelConfig model, DecoderWeights weights, const kernels::Kernels& kernels,
                         const ExecutorConfig& config, std::unique_ptr<ThreadPool> pool)
    : model_(std::move(model)),
      weights_(std::move(weights)),
      layout_(make_layout(model_, weights_.fingerprint, config.kv_dtype)),
      mla_prefill_(config.mla_prefill),
      pool_(std::move(pool)),
      groups_(head_groups(model_, pool_->num_threads())),
      rope_(model_.rope),
      products_(kernels, *pool_, depth_max(model_)),
      tools_{model_, kernels, *pool_, products_},
      attention_(layout_.kind == KvKind::kMla
                     ? make_mla_attention(tools_, layout_, groups_, rope_)
                     : make_gqa_attention(tools_, layout_, groups_, rope_)),
      dense_(tools_),
      moe_(tools_) {}

std::string CpuExecutor::numerics_id() const {
  const bool integer = weights_.dtype == "int8" || weights_.dtype == "int4";
  const std::string attention =
      layout_.kind == KvKind::kMla ? "mla-" + std::string(name(mla_prefill_)) : "gqa";
  // Every variant of the kernels gives these bits, so their name is no part of it.
  return "cpu-fma-v2;w=" + weights_.dtype + ";a=" + (integer ? "int16" : "f32") +
         ";kv=" + name(layout_.dtype) + ";attn=" + attention + "-run512-v1" +
         (model_.moe.num_experts > 0 ? ";moe=by-id-v1" : "");
}

void CpuExecutor::bind_slab(std::byte* slab, uint32_t num_blocks) {
  slab_ = slab;
  num_blocks_ = num_blocks;
}

std::span<const float> CpuExecutor::run(std::span<const BatchItem> batch,
                                        const LayerCallback& on_layer) {
  assert(slab_ != nullptr);
  plan_.build(batch,
              {model_.context_tokens_max, model_.vocab_size, num_blocks_, pool_->num_threads(),
               mla_prefill_ == MlaPrefill::kExpanded},
              groups_);
  embed();
  for (uint32_t layer = 0; layer < model_.num_layers; ++layer) {
    run_layer(layer);
    if (on_layer) on_layer(layer);
  }
  return compute_logits();
}

Rows CpuExecutor::rows(std::vector<float>& memory, uint32_t count, uint32_t width) {
  grow(memory, size_t{count} * width);
  return {memory.data(), width, count};
}

void CpuExecutor::embed() {
  const uint32_t num_rows = plan_.all.num_rows(), half = rope_.half_dim();
  residual_ = rows(residual_memory_, num_rows, model_.hidden_size);
  grow(cosines_, size_t{num_rows} * half);
  grow(sines_, size_t{num_rows} * half);
  for_rows(*pool_, num_rows, [&](uint32_t row) {
    const RowPlace& place = plan_.all.rows[row];
    const PackedMatrix& embedding = weights_.embedding;
    kernels::unpack_output(embedding.panels, embedding.format, embedding.depth,
                           static_cast<uint32_t>(place.token), residual_[row]);
    rope_.angles(place.position, cosines_.data() + size_t{row} * half,
                 sines_.data() + size_t{row} * half);
  });
}

Rows CpuExecutor::norm(const Rows& x, const std::vector<float>& weight,
                       std::vector<float>& memory) {
  const Rows normed = rows(memory, x.count, model_.hidden_size);
  for_rows(*pool_, x.count, [&](uint32_t row) {
    kernels::rms_norm(x[row], weight.data(), model_.hidden_size, model_.rms_norm_eps, normed[row]);
  });
  return normed;
}

// The rows that want logits.
Rows CpuExecutor::gather(const Rows& x, std::vector<float>& memory) {
  const Rows some = rows(memory, plan_.last.num_rows(), model_.hidden_size);
  for (uint32_t row = 0; row < some.count; ++row) {
    std::memcpy(some[row], x[plan_.logit_rows[row]], model_.hidden_size * sizeof(float));
  }
  return some;
}

void CpuExecutor::run_layer(uint32_t layer) {
  const LayerWeights& weights = weights_.layers[layer];
  const bool narrows = layer + 1 == model_.num_layers && !plan_.last_is_all();
  const Rows normed = norm(residual_, weights.attention_norm, normed_memory_);
  if (narrows) residual_ = gather(residual_, last_residual_memory_);
  attention_->run(weights, {.layer = layer,
                            .slab = slab_,
                            .plan = plan_,
                            .set = narrows ? plan_.last : plan_.all,
                            .x = normed,
                            .set_x = narrows ? gather(normed, last_normed_memory_) : normed,
                            .cosines = cosines_.data(),
                            .sines = sines_.data(),
                            .residual = residual_});
  const Rows mlp_normed = norm(residual_, weights.mlp_norm, normed_memory_);
  if (const auto* dense = std::get_if<MlpWeights>(&weights.mlp)) {
    dense_.run(*dense, mlp_normed, residual_);
  } else {
    moe_.run(std::get<MoeWeights>(weights.mlp), mlp_normed, residual_);
  }
}

std::span<const float> CpuExecutor::compute_logits() {
  const uint32_t num_logit_rows = plan_.last.num_rows();
  const Rows logits = rows(logits_, num_logit_rows, model_.vocab_size);
  const Rows normed = norm(residual_, weights_.final_norm, normed_memory_);
  products_.run({.matrix = &weights_.head, .x = normed, .y = logits});
  return {logits_.data(), size_t{num_logit_rows} * model_.vocab_size};
}

void CpuExecutor::zero_tail(BlockId block, uint32_t num_used_slots) {
  assert(slab_ != nullptr && block < num_blocks_);
  crossdock::zero_tail(layout_, num_used_slots, slab_ + block * layout_.stride_bytes());
}

Status check_mla_prefill(const ModelConfig& model, MlaPrefill form) {
  if (form == MlaPrefill::kAbsorbed || model.attention == ModelConfig::Attention::kMla) return {};
  return {StatusCode::kInvalidArgument,
          "mla_prefill: expanded needs a model with latent attention (MLA); " + model.architecture +
              " has grouped-query attention: leave it at absorbed"};
}

}  // namespace

std::string_view name(MlaPrefill form) {
  return form == MlaPrefill::kExpanded ? "expanded" : "absorbed";
}

Result<MlaPrefill> parse_mla_prefill(std::string_view text) {
  for (const auto form : {MlaPrefill::kAbsorbed, MlaPrefill::kExpanded}) {
    if (name(form) == text) return form;
  }
  return Status(StatusCode::kInvalidArgument,
                "mla_prefill must be absorbed or expanded, not \"" + std::string(text) + "\"");
}

Result<std::unique_ptr<Executor>> load_cpu_executor(const ExecutorConfig& config) {
  if (config.num_threads < 1 || config.num_threads > 1024) {
    return Status(StatusCode::kInvalidArgument,
                  "num_threads must be from 1 to 1024, not " + std::to_string(config.num_threads));
  }
  auto selected = kernels::select_kernels(config.kernels);
  if (!selected.ok()) return selected.status();
  auto model = load_model_config(config.model_directory);
  if (!model.ok()) return model.status();
  if (Status status = make_layout(model.value(), {}, config.kv_dtype).validate(); !status.ok()) {
    return status;
  }
  if (Status status = check_mla_prefill(model.value(), config.mla_prefill); !status.ok()) {
    return status;
  }
  auto checkpoint = Checkpoint::open(config.model_directory);
  if (!checkpoint.ok()) return checkpoint.status();
  auto pool = std::make_unique<ThreadPool>(config.num_threads, config.pin_threads);
  WeightOptions options = config.weights;
  options.expands_latents = config.mla_prefill == MlaPrefill::kExpanded;
  auto weights = DecoderWeights::load(checkpoint.value(), model.value(), options, *pool);
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<Executor>(
      std::make_unique<CpuExecutor>(std::move(model).value(), std::move(weights).value(),
                                    *selected.value(), config, std::move(pool)));
}

}  // namespace crossdock
