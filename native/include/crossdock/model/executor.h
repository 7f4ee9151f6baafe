// Runs the model on one step's batch. The engine's loop calls it; it owns weights, workers and
// scratch memory, and reads and writes KV blocks in the slab it is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/model/model_config.h"
#include "crossdock/sys/status.h"

namespace crossdock {

// How weights are held: "auto" is what the checkpoint has; the others are made when it is loaded.
enum class WeightDtype : uint8_t { kAuto, kF32, kBf16, kFp8, kInt8, kInt4 };

inline constexpr WeightDtype kAllWeightDtypes[] = {WeightDtype::kAuto, WeightDtype::kF32,
                                                   WeightDtype::kBf16, WeightDtype::kFp8,
                                                   WeightDtype::kInt8, WeightDtype::kInt4};
std::string_view name(WeightDtype dtype);  // "auto", "f32", ...
// INVALID_ARGUMENT lists the names.
Result<WeightDtype> parse_weight_dtype(std::string_view text);

// How the positions of a prompt attend in a model with latent attention (MLA): on the latents as
// they are cached, or on each head's own keys and values, expanded from them. Generated positions
// are always absorbed.
enum class MlaPrefill : uint8_t { kAbsorbed, kExpanded };

std::string_view name(MlaPrefill form);  // "absorbed", "expanded"
// INVALID_ARGUMENT lists the names.
Result<MlaPrefill> parse_mla_prefill(std::string_view text);

struct WeightOptions {
  WeightDtype dtype = WeightDtype::kAuto;
  // Weights that were quantised are kept here, named by fingerprint and dtype, so that the next
  // start reads them instead. Empty: nowhere.
  std::string cache_directory;
  // Hears why they could not be kept or read again, which costs time and nothing else.
  std::function<void(const std::string&)> on_cache_warning;
  // Also packs what expands latents into keys (MlaPrefill::kExpanded).
  bool expands_latents = false;
};

struct ExecutorConfig {
  std::string model_directory;
  WeightOptions weights;
  DType kv_dtype = DType::kF32;
  MlaPrefill mla_prefill = MlaPrefill::kAbsorbed;
  uint32_t num_threads = 1;      // the calling thread is one of them
  bool pin_threads = true;       // see ThreadPool
  std::string kernels = "auto";  // "auto" | "avx512" | "avx2" | "scalar"
};

// One sequence's share of a step.
struct BatchItem {
  std::span<const int32_t> tokens;       // the tokens of this chunk
  uint32_t first_position = 0;           // of tokens[0]
  std::span<const BlockId> block_table;  // covers positions [0, first_position + tokens.size())
  bool wants_logits = false;             // of the last token of the chunk
  // Positions from here on were generated: where prompts are expanded, these are not.
  uint32_t first_generated = UINT32_MAX;
};

// Called by the loop thread after each layer of a step, once its K and V are in the slab.
using LayerCallback = std::function<void(uint32_t layer)>;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ModelConfig& model() const = 0;
  virtual const KvLayout& layout() const = 0;
  // Everything that decides the bits of a result: kernels, weight, activation and KV dtype,
  // attention form. Part of every block hash.
  virtual std::string numerics_id() const = 0;
  // `slab` holds blocks at layout().stride_bytes(); called once before the first run.
  virtual void bind_slab(std::byte* slab, uint32_t num_blocks) = 0;
  // Computes the batch: K and V of every token into its block, then the logits of those that want
  // them, as rows of vocab_size floats in batch order. The result is valid until the next run.
  // Each row is bit-identical whatever the batch, chunking or thread count.
  virtual std::span<const float> run(std::span<const BatchItem> batch,
                                     const LayerCallback& on_layer) = 0;
  // Zeroes slots [num_used_slots, kBlockTokens) of a block in every layer, so that no earlier
  // tenant's bytes travel with it.
  virtual void zero_tail(BlockId block, uint32_t num_used_slots) = 0;
};

// Loads config and weights (mmap, then packed into panels). Errors name the file and tensor.
Result<std::unique_ptr<Executor>> load_cpu_executor(const ExecutorConfig& config);

}  // namespace crossdock
