#include "llama_weights.h"

#include <sodium.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "crossdock/kernels/math.h"
#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

using kernels::kPanelOutputs;
using kernels::WeightFormat;

Status tensor_error(StatusCode code, const Tensor& tensor, const std::string& what) {
  return Status(code, tensor.file + ": tensor " + tensor.name + ": " + what);
}

// Fetches tensors by name, checking shape and dtype, and remembers which were asked for.
class TensorReader {
 public:
  explicit TensorReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  Result<const Tensor*> get(const std::string& name, std::vector<uint64_t> shape) {
    const Tensor* tensor = checkpoint_.find(name);
    if (tensor == nullptr) {
      return Status(StatusCode::kInvalidArgument, checkpoint_.directory() + ": tensor " + name +
                                                      " of shape " + shape_string(shape) +
                                                      " is missing");
    }
    if (tensor->shape != shape) {
      return tensor_error(StatusCode::kInvalidArgument, *tensor,
                          "has shape " + shape_string(tensor->shape) +
                              ", but config.json asks for " + shape_string(shape));
    }
    if (tensor->dtype != "F32" && tensor->dtype != "BF16") {
      return tensor_error(StatusCode::kUnimplemented, *tensor,
                          "dtype " + tensor->dtype + " is not supported; only F32 and BF16 are");
    }
    used_.insert(name);
    return tensor;
  }

  // All matrices have one dtype, that of the first.
  Result<const Tensor*> matrix(const std::string& name, uint64_t outputs, uint64_t depth) {
    auto tensor = get(name, {outputs, depth});
    if (!tensor.ok()) return tensor;
    if (matrix_dtype_.empty()) matrix_dtype_ = tensor.value()->dtype;
    if (tensor.value()->dtype != matrix_dtype_) {
      return tensor_error(StatusCode::kUnimplemented, *tensor.value(),
                          "dtype " + tensor.value()->dtype + " is not supported beside " +
                              matrix_dtype_ + "; all matrices must have one dtype");
    }
    return tensor;
  }

  // A vector, widened to f32.
  Status vector(const std::string& name, uint64_t size, std::vector<float>& to) {
    auto tensor = get(name, {size});
    if (!tensor.ok()) return tensor.status();
    const std::byte* bytes = tensor.value()->bytes.data();
    to.resize(size);
    for (uint64_t i = 0; i < size; ++i) {
      if (tensor.value()->dtype == "F32") {
        std::memcpy(&to[i], bytes + i * 4, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, bytes + i * 2, 2);
        to[i] = kernels::widen_bf16(bits);
      }
    }
    return {};
  }

  // A tensor that nobody asked for would be ignored weights: a bias, an adapter, another model.
  Status check_all_used(const Tensor& embedding) const {
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (used_.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
      const bool copy_of_embedding = name == "lm_head.weight" && tensor.shape == embedding.shape &&
                                     std::ranges::equal(tensor.bytes, embedding.bytes);
      if (copy_of_embedding) continue;
      return tensor_error(StatusCode::kUnimplemented, tensor,
                          "is not part of a LlamaForCausalLM of this config.json");
    }
    return {};
  }

  const std::set<std::string>& used() const { return used_; }
  WeightFormat matrix_type() const {
    return matrix_dtype_ == "F32" ? WeightFormat::kF32 : WeightFormat::kBf16;
  }

 private:
  const Checkpoint& checkpoint_;
  std::string matrix_dtype_;
  std::set<std::string> used_;
};

// A matrix to be packed: where the weights of each output of each panel come from (null: padding).
struct PackPlan {
  PackedMatrix* to = nullptr;
  std::vector<const std::byte*> rows;  // a multiple of 16
  size_t offset = 0;                   // of the first panel in the arena

  uint32_t num_panels() const { return static_cast<uint32_t>(rows.size()) / kPanelOutputs; }
};

void append_rows(const Tensor& tensor, std::vector<const std::byte*>& rows) {
  const size_t row_bytes = tensor.bytes.size() / tensor.shape[0];
  for (size_t row = 0; row < tensor.shape[0]; ++row) {
    rows.push_back(tensor.bytes.data() + row * row_bytes);
  }
}

void pad(std::vector<const std::byte*>& rows) {
  while (rows.size() % kPanelOutputs != 0) rows.push_back(nullptr);
}

PackPlan concatenate(PackedMatrix& to, std::vector<const Tensor*> parts) {
  PackPlan plan{.to = &to};
  for (const Tensor* part : parts) append_rows(*part, plan.rows);
  to.depth = static_cast<uint32_t>(parts[0]->shape[1]);
  to.num_outputs = static_cast<uint32_t>(plan.rows.size());
  pad(plan.rows);
  return plan;
}

PackPlan interleave(PackedMatrix& to, const Tensor& gate, const Tensor& up) {
  std::vector<const std::byte*> gates, ups;
  append_rows(gate, gates);
  append_rows(up, ups);
  to.depth = static_cast<uint32_t>(gate.shape[1]);
  to.num_outputs = static_cast<uint32_t>(gates.size());
  pad(gates);
  pad(ups);
  PackPlan plan{.to = &to};
  for (size_t i = 0; i < gates.size(); i += kPanelOutputs) {
    plan.rows.insert(plan.rows.end(), gates.begin() + i, gates.begin() + i + kPanelOutputs);
    plan.rows.insert(plan.rows.end(), ups.begin() + i, ups.begin() + i + kPanelOutputs);
  }
  return plan;
}

// One panel. `Bits` is an unsigned integer of the element's size; the file may be unaligned.
template <typename Bits>
void pack_panel(const std::byte* const* rows, uint32_t depth, std::byte* to) {
  auto* out = reinterpret_cast<Bits*>(to);
  for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
    if (rows[lane] == nullptr) continue;  // the arena is zeroed
    for (uint32_t k = 0; k < depth; ++k) {
      std::memcpy(&out[size_t{k} * kPanelOutputs + lane], rows[lane] + k * sizeof(Bits),
                  sizeof(Bits));
    }
  }
}

void pack(const PackPlan& plan, WeightFormat type, std::byte* arena, ThreadPool& pool) {
  const uint32_t depth = plan.to->depth;
  const size_t panel_bytes = size_t{depth} * kPanelOutputs * (type == WeightFormat::kF32 ? 4 : 2);
  plan.to->panels = arena + plan.offset;
  pool.parallel_for(plan.num_panels(), 4, [&](size_t begin, size_t end, uint32_t) {
    for (size_t panel = begin; panel < end; ++panel) {
      const auto* rows = plan.rows.data() + panel * kPanelOutputs;
      std::byte* to = arena + plan.offset + panel * panel_bytes;
      if (type == WeightFormat::kF32) {
        pack_panel<uint32_t>(rows, depth, to);
      } else {
        pack_panel<uint16_t>(rows, depth, to);
      }
    }
  });
}

Status plan_layer(TensorReader& reader, const ModelConfig& config, uint32_t index,
                  LlamaLayer& layer, std::vector<PackPlan>& plans) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const uint64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const uint64_t q_size = uint64_t{config.num_heads} * config.head_dim;
  const uint64_t kv_size = uint64_t{config.num_kv_heads} * config.head_dim;
  Status status = reader.vector(prefix + "input_layernorm.weight", hidden, layer.attention_norm);
  if (!status.ok()) return status;
  status = reader.vector(prefix + "post_attention_layernorm.weight", hidden, layer.mlp_norm);
  if (!status.ok()) return status;

  struct Wanted {
    const char* name;
    uint64_t outputs;
    uint64_t depth;
  };
  const Wanted wanted[] = {
      {"self_attn.q_proj.weight", q_size, hidden},  {"self_attn.k_proj.weight", kv_size, hidden},
      {"self_attn.v_proj.weight", kv_size, hidden}, {"self_attn.o_proj.weight", hidden, q_size},
      {"mlp.gate_proj.weight", inner, hidden},      {"mlp.up_proj.weight", inner, hidden},
      {"mlp.down_proj.weight", hidden, inner}};
  std::vector<const Tensor*> found;
  for (const auto& [name, outputs, depth] : wanted) {
    auto tensor = reader.matrix(prefix + name, outputs, depth);
    if (!tensor.ok()) return tensor.status();
    found.push_back(tensor.value());
  }
  plans.push_back(concatenate(layer.qkv, {found[0], found[1], found[2]}));
  plans.push_back(concatenate(layer.output, {found[3]}));
  plans.push_back(interleave(layer.gate_up, *found[4], *found[5]));
  plans.push_back(concatenate(layer.down, {found[6]}));
  return {};
}

Fingerprint fingerprint_of(const Checkpoint& checkpoint, const ModelConfig& config,
                           const std::set<std::string>& names, ThreadPool& pool) {
  std::vector<const Tensor*> tensors;
  for (const auto& name : names) tensors.push_back(checkpoint.find(name));
  std::vector<XXH128_hash_t> hashes(tensors.size());
  pool.parallel_for(tensors.size(), 1, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i) {
      hashes[i] = XXH3_128bits(tensors[i]->bytes.data(), tensors[i]->bytes.size());
    }
  });
  WireWriter writer;
  writer.put(std::string_view("crossdock.model.v1"));
  writer.put(config.architecture);
  for (const uint32_t value :
       {config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads,
        config.num_kv_heads, config.head_dim, config.vocab_size}) {
    writer.put(value);
  }
  writer.put(config.rms_norm_eps);
  writer.put(config.rope.theta);
  writer.put(config.tie_word_embeddings);
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.put(tensors[i]->name);
    writer.put(tensors[i]->dtype);
    writer.put(tensors[i]->shape);
    writer.put(hashes[i].low64);
    writer.put(hashes[i].high64);
  }
  Fingerprint fingerprint;
  const auto bytes = writer.bytes();
  crypto_generichash(fingerprint.data(), fingerprint.size(),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr,
                     0);
  return fingerprint;
}

// Lays the matrices out in one arena, each on a cache line, and packs them.
Status pack_all(LlamaWeights& weights, std::vector<PackPlan>& plans, ThreadPool& pool) {
  constexpr size_t kAlignment = 64;
  size_t size = 0;
  for (auto& plan : plans) {
    plan.offset = size;
    size += plan.rows.size() * plan.to->depth * (weights.format == WeightFormat::kF32 ? 4 : 2);
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
  }
  auto arena = PageBuffer::allocate(size);
  if (!arena.ok()) return arena.status();
  weights.arena = std::move(arena).value();
  for (const auto& plan : plans) pack(plan, weights.format, weights.arena.data(), pool);
  return {};
}

}  // namespace

Result<LlamaWeights> LlamaWeights::load(const Checkpoint& checkpoint, const ModelConfig& config,
                                        ThreadPool& pool) {
  LlamaWeights weights;
  TensorReader reader(checkpoint);
  std::vector<PackPlan> plans;
  auto embedding =
      reader.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  if (!embedding.ok()) return embedding.status();
  plans.push_back(concatenate(weights.embedding, {embedding.value()}));
  weights.layers.resize(config.num_layers);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    Status status = plan_layer(reader, config, layer, weights.layers[layer], plans);
    if (!status.ok()) return status;
  }
  Status status = reader.vector("model.norm.weight", config.hidden_size, weights.final_norm);
  if (!status.ok()) return status;
  if (!config.tie_word_embeddings) {
    auto head = reader.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
    if (!head.ok()) return head.status();
    plans.push_back(concatenate(weights.head, {head.value()}));
  }
  if (status = reader.check_all_used(*embedding.value()); !status.ok()) return status;
  weights.format = reader.matrix_type();
  if (status = pack_all(weights, plans, pool); !status.ok()) return status;
  if (config.tie_word_embeddings) weights.head = weights.embedding;
  weights.fingerprint = fingerprint_of(checkpoint, config, reader.used(), pool);
  return weights;
}

}  // namespace crossdock
