#include "decoder_weights.h"

#include <sodium.h>
#include <xxhash.h>

#include <algorithm>

#include "crossdock/sys/wire.h"
#include "packed_cache.h"
#include "tensor_reader.h"
#include "weight_planner.h"

namespace crossdock {
namespace {

void put_config(const ModelConfig& config, WireWriter& writer) {
  writer.put(config.architecture);
  for (const uint32_t value : {config.num_layers,
                               config.hidden_size,
                               config.intermediate_size,
                               config.num_heads,
                               config.num_kv_heads,
                               config.head_dim,
                               config.vocab_size,
                               config.mla.q_rank,
                               config.mla.latent_rank,
                               config.mla.nope_dim,
                               config.mla.rope_dim,
                               config.mla.value_dim,
                               config.moe.num_experts,
                               config.moe.num_chosen,
                               config.moe.intermediate_size,
                               config.moe.shared_intermediate_size,
                               config.moe.num_groups,
                               config.moe.num_chosen_groups,
                               config.rope.dim,
                               config.rope.original_context_tokens}) {
    writer.put(value);
  }
  for (const float value :
       {config.rms_norm_eps, config.moe.scale, config.rope.theta, config.rope.factor,
        config.rope.low_frequency_factor, config.rope.high_frequency_factor, config.rope.beta_fast,
        config.rope.beta_slow, config.rope.mscale, config.rope.mscale_all_dim,
        config.rope.attention_factor}) {
    writer.put(value);
  }
  for (const bool value : {config.tie_word_embeddings, config.qkv_bias, config.qk_norm,
                           config.moe.normalise, config.rope.interleaved, config.rope.truncate}) {
    writer.put(value);
  }
  writer.put(config.attention);
  writer.put(config.moe.scoring);
  writer.put(config.moe.selection);
  writer.put(config.rope.scaling);
  for (const bool value : config.is_moe) writer.put(value);
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
  writer.put(std::string_view("crossdock.model.v2"));
  put_config(config, writer);
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

Status pack_all(std::byte* arena, const std::vector<MatrixPlan>& plans, ThreadPool& pool) {
  for (const auto& plan : plans) {
    if (Status status = pack(plan, arena, pool); !status.ok()) return status;
  }
  return {};
}

// From the cache where that saves time, else from the checkpoint.
Status fill(std::byte* arena, const std::vector<MatrixPlan>& plans, const WeightOptions& options,
            const PackedCache& cache, ThreadPool& pool) {
  const bool cached = !options.cache_directory.empty() &&
                      std::ranges::any_of(plans, [](const auto& plan) { return plan.quantises(); });
  if (!cached) return pack_all(arena, plans, pool);
  const auto warn = [&](const Status& status) {
    if (options.on_cache_warning) options.on_cache_warning(status.message());
  };
  const Status read = cache.read(arena, pool);
  if (read.ok()) return {};
  if (read.code() != StatusCode::kNotFound) warn(read);
  if (Status status = pack_all(arena, plans, pool); !status.ok()) return status;
  const Status written = cache.write(arena, pool);
  // Another process that starts with the same weights keeps them.
  if (!written.ok() && written.code() != StatusCode::kAborted) warn(written);
  return {};
}

}  // namespace

Result<DecoderWeights> DecoderWeights::load(const Checkpoint& checkpoint, const ModelConfig& config,
                                            const WeightOptions& options, ThreadPool& pool) {
  DecoderWeights weights;
  TensorReader reader(checkpoint, config.fp8_block_scaled);
  WeightPlanner planner(config, reader, weights);
  if (Status status = planner.plan(options); !status.ok()) return status;
  weights.fingerprint = fingerprint_of(checkpoint, config, reader.used(), pool);
  auto arena = PageBuffer::allocate(planner.arena_bytes());
  if (!arena.ok()) return arena.status();
  weights.arena = std::move(arena).value();
  const PackedCache cache(options.cache_directory, weights.fingerprint, planner.plans(),
                          planner.arena_bytes());
  Status status = fill(weights.arena.data(), planner.plans(), options, cache, pool);
  if (!status.ok()) return status;
  planner.bind(weights.arena.data());
  return weights;
}

}  // namespace crossdock
