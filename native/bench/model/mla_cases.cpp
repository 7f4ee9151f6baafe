// Prompts of a model with latent attention, in both forms: when the expanded one pays.
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

#include "crossdock/sys/mapped_file.h"
#include "random_model.h"
#include "report.h"

namespace crossdock::bench {
namespace {

constexpr uint32_t kPromptTokens[] = {512, 2048};
constexpr uint32_t kPromptTokensMax = 2048;
constexpr MlaPrefill kForms[] = {MlaPrefill::kAbsorbed, MlaPrefill::kExpanded};

std::string case_name(MlaPrefill form, uint32_t num_tokens) {
  return "mla_prefill_" + std::to_string(num_tokens) + "_" + std::string(name(form));
}

// Weights that a token takes part in within its layer, but for those of kv_b_proj.
double weights_of(const ModelConfig& model, uint32_t layer) {
  const MlaConfig& mla = model.mla;
  const double hidden = model.hidden_size, query = mla.nope_dim + mla.rope_dim;
  const double q_in = mla.q_rank > 0 ? mla.q_rank : hidden;
  const double attention = hidden * mla.q_rank + q_in * model.num_heads * query +
                           hidden * (mla.latent_rank + mla.rope_dim) +
                           hidden * model.num_heads * mla.value_dim;
  const MoeConfig& moe = model.moe;
  if (layer >= model.is_moe.size() || !model.is_moe[layer]) {
    return attention + 3 * hidden * model.intermediate_size;
  }
  const double inner =
      double{1} * moe.num_chosen * moe.intermediate_size + moe.shared_intermediate_size;
  return attention + hidden * moe.num_experts + 3 * hidden * inner;
}

// Of a prompt computed in one step. Both forms take each position once through the head's share of
// kv_b_proj; what a pair of positions costs is where they differ.
double gflop(const ModelConfig& model, uint32_t num_tokens, MlaPrefill form) {
  const MlaConfig& mla = model.mla;
  const double tokens = num_tokens, pairs = tokens * (tokens + 1) / 2;
  const bool absorbed = form == MlaPrefill::kAbsorbed;
  const double key = (absorbed ? mla.latent_rank : mla.nope_dim) + mla.rope_dim;
  const double value = absorbed ? mla.latent_rank : mla.value_dim;
  const double kv_b = double{1} * mla.latent_rank * (mla.nope_dim + mla.value_dim);
  double sum = double{1} * model.hidden_size * model.vocab_size;
  for (uint32_t layer = 0; layer < model.num_layers; ++layer) {
    sum += tokens * weights_of(model, layer) +
           model.num_heads * (tokens * kv_b + pairs * (key + value));
  }
  return 2 * sum / 1e9;
}

Status bench_form(const Report& report, const Options& options, const std::string& directory,
                  MlaPrefill form) {
  auto loaded = load_cpu_executor({.model_directory = directory,
                                   .weights = {options.weight_dtype, options.weight_cache, {}},
                                   .kv_dtype = options.kv_dtype,
                                   .mla_prefill = form,
                                   .num_threads = options.threads,
                                   .kernels = options.kernels});
  if (!loaded.ok()) return loaded.status();
  Executor& executor = *loaded.value();
  constexpr uint32_t kNumBlocks = kPromptTokensMax / kBlockTokens;
  auto slab = PageBuffer::allocate(kNumBlocks * executor.layout().stride_bytes());
  if (!slab.ok()) return slab.status();
  executor.bind_slab(slab.value().data(), kNumBlocks);
  std::vector<BlockId> table(kNumBlocks);
  for (uint32_t i = 0; i < kNumBlocks; ++i) table[i] = i;
  std::mt19937 random(1);
  std::vector<int32_t> tokens(kPromptTokensMax);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % executor.model().vocab_size);
  }
  for (const uint32_t num_tokens : kPromptTokens) {
    if (!report.wants(case_name(form, num_tokens))) continue;
    if (num_tokens > executor.model().context_tokens_max) continue;
    const BatchItem prompt{
        .tokens = std::span(tokens).first(num_tokens), .block_table = table, .wants_logits = true};
    executor.run({&prompt, 1}, {});  // memory of the step has been taken
    const Work work{.amount = double{1} * num_tokens,
                    .gflop = gflop(executor.model(), num_tokens, form)};
    report.measure(case_name(form, num_tokens), work, [&] { executor.run({&prompt, 1}, {}); });
  }
  return {};
}

}  // namespace

bool is_latent(const std::string& model) {
  const auto config = load_model_config(model);
  return config.ok() && config.value().attention == ModelConfig::Attention::kMla;
}

int bench_mla(const Report& report, const Options& options) {
  bool wanted = false;
  for (const auto form : kForms) {
    for (const uint32_t num_tokens : kPromptTokens) {
      wanted = wanted || report.wants(case_name(form, num_tokens));
    }
  }
  if (!wanted) return 0;
  const bool given = is_latent(options.model);
  std::string directory = options.model;
  if (!given) {
    std::string pattern = (std::filesystem::temp_directory_path() / "crossdock-XXXXXX").string();
    directory = mkdtemp(pattern.data());
    write_random_mla_model(directory);
  }
  Status status;
  for (const auto form : kForms) {
    if (status.ok()) status = bench_form(report, options, directory, form);
  }
  if (!given) std::filesystem::remove_all(directory);
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_engine: %s\n", status.to_string().c_str());
  return 1;
}

}  // namespace crossdock::bench
