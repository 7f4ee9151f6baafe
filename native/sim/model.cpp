#include "model.h"

#include <bit>
#include <cstring>

#include "crossdock/engine/request.h"
#include "crossdock/model/sampler.h"
#include "random.h"

namespace crossdock::sim {
namespace {

uint64_t hash(const std::string& text) {
  uint64_t value = text.size();
  for (const char letter : text) value = mix(value, static_cast<uint8_t>(letter));
  return value;
}

}  // namespace

Model::Model(const std::string& name) : seed_(hash(name)) {
  std::memcpy(fingerprint_.data(), &seed_, sizeof seed_);
  config_.architecture = "Simulated";
  config_.num_layers = kNumLayers;
  config_.hidden_size = kHeadDim;
  config_.vocab_size = kVocabSize;
  config_.context_tokens_max = kContextTokensMax;
  config_.num_heads = config_.num_kv_heads = 1;
  config_.head_dim = kHeadDim;
  config_.eos_token_ids = {kEosTokenId};
}

KvLayout Model::layout(DType dtype) const {
  return {.model = fingerprint_,
          .num_layers = kNumLayers,
          .num_kv_heads = 1,
          .head_dim = kHeadDim,
          .dtype = dtype};
}

Model::Chains Model::begin() const {
  Chains chains;
  for (uint32_t layer = 0; layer < kNumLayers; ++layer) chains[layer] = mix(seed_, layer);
  return chains;
}

uint64_t Model::embed(int32_t token, uint32_t position) const {
  return mix(mix(seed_, static_cast<uint32_t>(token)), position);
}

Model::Cell Model::cell(uint32_t layer, uint64_t below, uint64_t chain) const {
  uint64_t bits = mix(mix(below, layer), chain);
  Cell cell;
  for (float& value : cell) {
    value = static_cast<float>(bits & 0xff);
    bits >>= 8;
  }
  return cell;
}

uint64_t Model::extend(uint64_t chain, const Cell& cell) {
  for (size_t i = 0; i < cell.size(); i += 2) {
    chain = mix(chain, uint64_t{std::bit_cast<uint32_t>(cell[i])} << 32 |
                           std::bit_cast<uint32_t>(cell[i + 1]));
  }
  return chain;
}

uint64_t Model::above(uint64_t below, uint64_t chain) { return mix(below, chain); }

void Model::logits(uint64_t top, std::span<float> row) const {
  for (size_t token = 0; token < row.size(); ++token) {
    row[token] = static_cast<float>(mix(top, token) >> 40) * 0x1p-21f;  // in [0, 8)
  }
}

Result<std::vector<int32_t>> oracle(const Model& model, const link::Task& task) {
  auto made = make_request(task, RequestKind::kLocal, {}, model.config().eos_token_ids, kVocabSize);
  if (!made.ok()) return made.status();
  const Request& request = made.value();
  std::vector<int32_t> tokens = task.prompt;
  std::vector<int32_t> generated;
  std::vector<float> row(kVocabSize);
  Model::Chains chains = model.begin();
  for (uint32_t position = 0;; ++position) {
    uint64_t x = model.embed(tokens[position], position);
    for (uint32_t layer = 0; layer < kNumLayers; ++layer) {
      chains[layer] = Model::extend(chains[layer], model.cell(layer, x, chains[layer]));
      x = Model::above(x, chains[layer]);
    }
    const uint32_t next = position + 1;
    if (next < tokens.size()) continue;
    model.logits(x, row);
    const int32_t token = sample(row, request.sampling, next, banned_at(request, next));
    tokens.push_back(token);
    generated.push_back(token);
    if (finish_of(request, token, next, kContextTokensMax) != link::Finish::kNone) break;
  }
  return generated;
}

}  // namespace crossdock::sim
