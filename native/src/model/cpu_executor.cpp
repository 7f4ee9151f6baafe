// The Llama family on the CPU.
//
// A step: embed the rows; then per layer norm, the q/k/v product, RoPE, K and V into the slab,
// attention, the output product onto the residual, norm, gate and up with SwiGLU, the down product
// onto the residual; at last norm and head of the rows that want logits. Each arrow is one
// fork-join over units whose results do not depend on who computes them.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <utility>

#include "batch_plan.h"
#include "crossdock/kernels/attention.h"
#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/kernels/kv_codec.h"
#include "crossdock/model/executor.h"
#include "crossdock/sys/thread_pool.h"
#include "llama_weights.h"

namespace crossdock {
namespace {

using kernels::ElementType;
using kernels::Epilogue;
using kernels::Product;

ElementType element_type(DType dtype) {
  return dtype == DType::kF32 ? ElementType::kF32 : ElementType::kBf16;
}

KvLayout make_layout(const ModelConfig& model, const Fingerprint& fingerprint, DType kv_dtype) {
  KvLayout layout;
  layout.model = fingerprint;
  layout.num_layers = model.num_layers;
  layout.num_kv_heads = model.num_kv_heads;
  layout.head_dim = model.head_dim;
  layout.dtype = kv_dtype;
  return layout;
}

// Memory of a step, kept between steps: it grows to the largest batch seen and no further.
struct Activations {
  std::vector<float> residual;   // [row][hidden]
  std::vector<float> normed;     // [row][hidden]
  std::vector<float> qkv;        // [row][q | k | v]
  std::vector<float> attention;  // [row][q]
  std::vector<float> inner;      // [row][intermediate]
  std::vector<float> cosines;    // [row][head_dim / 2]
  std::vector<float> sines;
  std::vector<float> partials;  // states of split rows: [partial][kv head]
  std::vector<float> logits;    // [logit row][vocab]
};

void grow(std::vector<float>& memory, size_t size) {
  if (memory.size() < size) memory.resize(size);
}

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(ModelConfig model, LlamaWeights weights, const kernels::Kernels& kernels,
              const ExecutorConfig& config, std::unique_ptr<ThreadPool> pool);

  const ModelConfig& model() const override { return model_; }
  const KvLayout& layout() const override { return layout_; }
  std::string numerics_id() const override;
  void bind_slab(std::byte* slab, uint32_t num_blocks) override;
  std::span<const float> run(std::span<const BatchItem> batch,
                             const LayerCallback& on_layer) override;
  void zero_tail(BlockId block, uint32_t num_used_slots) override;

 private:
  void reserve();
  void embed();
  void norm(const std::vector<float>& weight);
  void multiply(const PackedMatrix& matrix, const float* x, uint32_t num_rows, Epilogue epilogue,
                std::vector<float>& y);
  void rotate_and_store(uint32_t layer);
  void attend(uint32_t layer);
  void run_task(const AttentionTask& task, const kernels::KvHead& kv, uint32_t kv_head,
                uint32_t thread);
  void merge_splits();
  std::span<const float> compute_logits();
  template <typename Body>
  void for_rows(size_t num_rows, const Body& body);

  uint32_t num_rows() const { return static_cast<uint32_t>(plan_.rows.size()); }
  float* partial_state(uint32_t partial, uint32_t kv_head) {
    return activations_.partials.data() +
           (size_t{partial} * model_.num_kv_heads + kv_head) *
               kernels::attention_state_floats(group_heads_, model_.head_dim);
  }

  const ModelConfig model_;
  const LlamaWeights weights_;
  const kernels::Kernels& kernels_;
  const KvLayout layout_;
  const ElementType kv_type_;
  const uint32_t group_heads_;
  const uint32_t q_size_;
  const uint32_t kv_size_;
  const uint32_t qkv_size_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<float> inverse_frequency_;
  std::vector<std::vector<float>> thread_scratch_;
  std::byte* slab_ = nullptr;
  uint32_t num_blocks_ = 0;
  BatchPlan plan_;
  Activations activations_;
};

CpuExecutor::CpuExecutor(ModelConfig model, LlamaWeights weights, const kernels::Kernels& kernels,
                         const ExecutorConfig& config, std::unique_ptr<ThreadPool> pool)
    : model_(std::move(model)),
      weights_(std::move(weights)),
      kernels_(kernels),
      layout_(make_layout(model_, weights_.fingerprint, config.kv_dtype)),
      kv_type_(element_type(config.kv_dtype)),
      group_heads_(model_.num_heads / model_.num_kv_heads),
      q_size_(model_.num_heads * model_.head_dim),
      kv_size_(model_.num_kv_heads * model_.head_dim),
      qkv_size_(q_size_ + 2 * kv_size_),
      pool_(std::move(pool)) {
  for (uint32_t i = 0; i < model_.head_dim / 2; ++i) {
    const double exponent = 2.0 * i / model_.head_dim;
    inverse_frequency_.push_back(
        static_cast<float>(1.0 / std::pow(double{model_.rope.theta}, exponent)));
  }
  const uint32_t rows = std::max(group_heads_, kernels::kTileRows);
  const size_t attention = kernels::attention_state_floats(rows, model_.head_dim) +
                           kernels::attention_scratch_floats(rows, model_.head_dim, model_.head_dim);
  const uint32_t depths[] = {model_.hidden_size, model_.intermediate_size, q_size_};
  size_t size = attention;
  for (const uint32_t depth : depths) {
    size = std::max(size, kernels::product_scratch_floats(depth));
  }
  thread_scratch_.assign(pool_->num_threads(), std::vector<float>(size));
}

std::string CpuExecutor::numerics_id() const {
  const char* weights = weights_.format == kernels::WeightFormat::kF32 ? "f32" : "bf16";
  const char* kv = kv_type_ == ElementType::kF32 ? "f32" : "bf16";
  // Every variant of the kernels gives these bits, so their name is no part of it.
  return std::string("cpu-fma-v1;w=") + weights + ";a=f32;kv=" + kv + ";attn=gqa-run512-v1";
}

void CpuExecutor::bind_slab(std::byte* slab, uint32_t num_blocks) {
  slab_ = slab;
  num_blocks_ = num_blocks;
}

std::span<const float> CpuExecutor::run(std::span<const BatchItem> batch,
                                        const LayerCallback& on_layer) {
  assert(slab_ != nullptr);
  plan_.build(batch, model_, num_blocks_, pool_->num_threads());
  reserve();
  embed();
  for (uint32_t layer = 0; layer < model_.num_layers; ++layer) {
    const LlamaLayer& weights = weights_.layers[layer];
    Activations& a = activations_;
    norm(weights.attention_norm);
    multiply(weights.qkv, a.normed.data(), num_rows(), Epilogue::kStore, a.qkv);
    rotate_and_store(layer);
    attend(layer);
    multiply(weights.output, a.attention.data(), num_rows(), Epilogue::kAdd, a.residual);
    norm(weights.mlp_norm);
    multiply(weights.gate_up, a.normed.data(), num_rows(), Epilogue::kSwiGlu, a.inner);
    multiply(weights.down, a.inner.data(), num_rows(), Epilogue::kAdd, a.residual);
    if (on_layer) on_layer(layer);
  }
  return compute_logits();
}

void CpuExecutor::reserve() {
  Activations& a = activations_;
  const size_t rows = num_rows();
  grow(a.residual, rows * model_.hidden_size);
  grow(a.normed, rows * model_.hidden_size);
  grow(a.qkv, rows * qkv_size_);
  grow(a.attention, rows * q_size_);
  grow(a.inner, rows * model_.intermediate_size);
  grow(a.cosines, rows * model_.head_dim / 2);
  grow(a.sines, rows * model_.head_dim / 2);
  grow(a.partials, size_t{plan_.num_partials} * model_.num_kv_heads *
                       kernels::attention_state_floats(group_heads_, model_.head_dim));
  grow(a.logits, plan_.logit_rows.size() * model_.vocab_size);
}

// Small loops over rows: few rows are not worth waking anyone for.
template <typename Body>
void CpuExecutor::for_rows(size_t num_rows, const Body& body) {
  const size_t grain = std::max<size_t>(8, num_rows / (4 * pool_->num_threads()));
  pool_->parallel_for(num_rows, grain, [&](size_t begin, size_t end, uint32_t) {
    for (size_t row = begin; row < end; ++row) body(static_cast<uint32_t>(row));
  });
}

void CpuExecutor::embed() {
  for_rows(num_rows(), [&](uint32_t row) {
    const RowPlace& place = plan_.rows[row];
    const uint32_t half = model_.head_dim / 2;
    kernels::unpack_output(weights_.embedding.panels, weights_.format, model_.hidden_size,
                           static_cast<uint32_t>(place.token),
                           activations_.residual.data() + size_t{row} * model_.hidden_size);
    kernels::rope_angles(place.position, inverse_frequency_.data(), half,
                         activations_.cosines.data() + size_t{row} * half,
                         activations_.sines.data() + size_t{row} * half);
  });
}

void CpuExecutor::norm(const std::vector<float>& weight) {
  for_rows(num_rows(), [&](uint32_t row) {
    const size_t first = size_t{row} * model_.hidden_size;
    kernels::rms_norm(activations_.residual.data() + first, weight.data(), model_.hidden_size,
                      model_.rms_norm_eps, activations_.normed.data() + first);
  });
}

void CpuExecutor::multiply(const PackedMatrix& matrix, const float* x, uint32_t num_rows,
                           Epilogue epilogue, std::vector<float>& y) {
  const uint32_t tile_rows = kernels::product_tile_rows(matrix.depth);
  const uint32_t num_tiles = (num_rows + tile_rows - 1) / tile_rows;
  const uint32_t units = (matrix.num_outputs + kernels::kPanelOutputs - 1) / kernels::kPanelOutputs;
  // Several pieces a thread, so that one that loses its processor holds up little; in fours, since
  // that is how many panels one row takes at once.
  const uint32_t share = units * num_tiles / (8 * pool_->num_threads());
  const uint32_t piece = std::min(units, std::max(4u, share / 4 * 4));
  const uint32_t num_pieces = (units + piece - 1) / piece;
  pool_->parallel_for(size_t{num_tiles} * num_pieces, 1, [&](size_t begin, size_t end, uint32_t t) {
    for (size_t i = begin; i < end; ++i) {
      const auto row = static_cast<uint32_t>(i / num_pieces) * tile_rows;
      const auto unit = static_cast<uint32_t>(i % num_pieces) * piece;
      const Product job{.x = x + size_t{row} * matrix.depth,
                        .x_stride = matrix.depth,
                        .num_rows = std::min(tile_rows, num_rows - row),
                        .tile_rows = tile_rows,
                        .depth = matrix.depth,
                        .panels = matrix.panels,
                        .format = weights_.format,
                        .epilogue = epilogue,
                        .num_outputs = matrix.num_outputs,
                        .y = y.data() + size_t{row} * matrix.num_outputs,
                        .y_stride = matrix.num_outputs};
      kernels_.product(job, unit, std::min(unit + piece, units), thread_scratch_[t].data());
    }
  });
}

void CpuExecutor::rotate_and_store(uint32_t layer) {
  for_rows(num_rows(), [&](uint32_t row) {
    const RowPlace& place = plan_.rows[row];
    const uint32_t head_dim = model_.head_dim, slot = place.position % kBlockTokens;
    float* q = activations_.qkv.data() + size_t{row} * qkv_size_;
    float* k = q + q_size_;
    const float* cosines = activations_.cosines.data() + size_t{row} * (head_dim / 2);
    const float* sines = activations_.sines.data() + size_t{row} * (head_dim / 2);
    kernels::rope_rotate(q, model_.num_heads + model_.num_kv_heads, head_dim, cosines, sines);
    std::byte* block = slab_ + place.block * layout_.stride_bytes();
    for (uint32_t head = 0; head < model_.num_kv_heads; ++head) {
      kernels::store_k(k + size_t{head} * head_dim, head_dim, slot, kv_type_,
                       block + layout_.k_offset(layer, head));
      kernels::store_v(k + kv_size_ + size_t{head} * head_dim, head_dim, slot, kv_type_,
                       block + layout_.v_offset(layer, head));
    }
  });
}

void CpuExecutor::attend(uint32_t layer) {
  const size_t num_tasks = plan_.tasks.size() * model_.num_kv_heads;
  pool_->parallel_for(num_tasks, 1, [&](size_t begin, size_t end, uint32_t thread) {
    for (size_t i = begin; i < end; ++i) {
      const auto kv_head = static_cast<uint32_t>(i % model_.num_kv_heads);
      // The last tasks of a long prompt are its longest: started first, the threads end together.
      const size_t index = plan_.tasks.size() - 1 - i / model_.num_kv_heads;
      const kernels::KvHead kv{slab_,
                               layout_.stride_bytes(),
                               layout_.k_offset(layer, kv_head),
                               layout_.v_offset(layer, kv_head),
                               kv_type_,
                               model_.head_dim,
                               model_.head_dim};
      run_task(plan_.tasks[index], kv, kv_head, thread);
    }
  });
  merge_splits();
}

void CpuExecutor::run_task(const AttentionTask& task, const kernels::KvHead& kv, uint32_t kv_head,
                           uint32_t thread) {
  const uint32_t head_dim = model_.head_dim;
  const size_t first_head = size_t{kv_head} * group_heads_ * head_dim;
  const kernels::QueryTile tile{
      activations_.qkv.data() + size_t{task.first_row} * qkv_size_ + first_head,
      qkv_size_,
      task.num_tokens,
      group_heads_,
      task.first_position,
      task.block_table,
      1.0f / std::sqrt(static_cast<float>(head_dim))};
  const uint32_t rows = tile.num_rows();
  float* scratch = thread_scratch_[thread].data();
  float* memory = task.split ? partial_state(task.partial, kv_head) : scratch;
  const auto state = kernels::attention_state(memory, rows, head_dim);
  kernels::attend(kernels_.attention, tile, kv, task.runs, state,
                  scratch + kernels::attention_state_floats(rows, head_dim));
  if (task.split) return;
  for (uint32_t row = 0; row < rows; ++row) {
    float* out = activations_.attention.data() +
                 (size_t{task.first_row} + row / group_heads_) * q_size_ + first_head;
    kernels::finish_row(state, row, head_dim, out + size_t{row % group_heads_} * head_dim);
  }
}

void CpuExecutor::merge_splits() {
  const uint32_t head_dim = model_.head_dim;
  for (const SplitRow& split : plan_.splits) {
    for (uint32_t head = 0; head < model_.num_heads; ++head) {
      const uint32_t kv_head = head / group_heads_, row = head % group_heads_;
      const auto state_of = [&](uint32_t index) {
        return kernels::attention_state(partial_state(split.first_partial + index, kv_head),
                                        group_heads_, head_dim);
      };
      for (uint32_t i = 1; i < split.num_partials; ++i) {
        kernels::merge_row(state_of(0), state_of(i), row, head_dim);
      }
      kernels::finish_row(
          state_of(0), row, head_dim,
          activations_.attention.data() + size_t{split.row} * q_size_ + size_t{head} * head_dim);
    }
  }
}

std::span<const float> CpuExecutor::compute_logits() {
  const auto num_logit_rows = static_cast<uint32_t>(plan_.logit_rows.size());
  for_rows(num_logit_rows, [&](uint32_t i) {
    kernels::rms_norm(
        activations_.residual.data() + size_t{plan_.logit_rows[i]} * model_.hidden_size,
        weights_.final_norm.data(), model_.hidden_size, model_.rms_norm_eps,
        activations_.normed.data() + size_t{i} * model_.hidden_size);
  });
  if (num_logit_rows > 0) {
    multiply(weights_.head, activations_.normed.data(), num_logit_rows, Epilogue::kStore,
             activations_.logits);
  }
  return {activations_.logits.data(), size_t{num_logit_rows} * model_.vocab_size};
}

void CpuExecutor::zero_tail(BlockId block, uint32_t num_used_slots) {
  assert(slab_ != nullptr && block < num_blocks_ && num_used_slots <= kBlockTokens);
  const size_t element = size_bytes(layout_.dtype);
  const size_t tail_bytes = (kBlockTokens - num_used_slots) * element;
  std::byte* base = slab_ + block * layout_.stride_bytes();
  for (uint32_t layer = 0; layer < model_.num_layers; ++layer) {
    for (uint32_t head = 0; head < model_.num_kv_heads; ++head) {
      std::byte* k = base + layout_.k_offset(layer, head) + num_used_slots * element;
      for (uint32_t dim = 0; dim < model_.head_dim; ++dim) {
        std::memset(k + size_t{dim} * kBlockTokens * element, 0, tail_bytes);
      }
      std::memset(
          base + layout_.v_offset(layer, head) + size_t{num_used_slots} * model_.head_dim * element,
          0, tail_bytes * model_.head_dim);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Executor>> load_cpu_executor(const ExecutorConfig& config) {
  if (config.num_threads < 1 || config.num_threads > 1024) {
    return Status(StatusCode::kInvalidArgument,
                  "num_threads must be from 1 to 1024, not " + std::to_string(config.num_threads));
  }
  auto selected = kernels::select_kernels(config.kernels);
  if (!selected.ok()) return selected.status();
  auto model = load_model_config(config.model_directory);
  if (!model.ok()) return model.status();
  auto checkpoint = Checkpoint::open(config.model_directory);
  if (!checkpoint.ok()) return checkpoint.status();
  auto pool = std::make_unique<ThreadPool>(config.num_threads);
  auto weights = LlamaWeights::load(checkpoint.value(), model.value(), *pool);
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<Executor>(
      std::make_unique<CpuExecutor>(std::move(model).value(), std::move(weights).value(),
                                    *selected.value(), config, std::move(pool)));
}

}  // namespace crossdock
