// Weights from a checkpoint into panels: where each tensor lies, in which format, and what is said
// of a tensor that is not as it should be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "crossdock/kernels/math.h"
#include "decoder_weights.h"
#include "stored_checkpoint.h"

namespace crossdock::testing {
namespace {

using kernels::kPanelOutputs;
using kernels::WeightFormat;

Result<DecoderWeights> load_weights(const std::string& directory,
                                    WeightDtype dtype = WeightDtype::kAuto,
                                    uint32_t num_threads = 2) {
  auto config = load_model_config(directory);
  if (!config.ok()) return config.status();
  auto checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return checkpoint.status();
  ThreadPool pool(num_threads);
  return DecoderWeights::load(checkpoint.value(), config.value(), {.dtype = dtype}, pool);
}

Result<DecoderWeights> load_weights(const StoredCheckpoint& checkpoint,
                                    WeightDtype dtype = WeightDtype::kAuto) {
  TemporaryDirectory directory;
  checkpoint.write(directory.path());
  return load_weights(directory.path(), dtype);
}

// A tensor whose rows are outputs of a packed matrix.
struct Placed {
  std::string tensor;
  PackedMatrix matrix;
  uint32_t first_output = 0;
  int turn = -1;  // 0 or 1 where the panels of two tensors alternate

  std::vector<float> row(uint32_t index) const {
    const uint32_t panel = index / kPanelOutputs, lane = index % kPanelOutputs;
    const uint32_t output =
        turn < 0 ? first_output + index : (2 * panel + turn) * kPanelOutputs + lane;
    std::vector<float> values(matrix.depth);
    kernels::unpack_output(matrix.panels, matrix.format, matrix.depth, output, values.data());
    return values;
  }
};

void place_mlp(const std::string& prefix, const MlpWeights& mlp, std::vector<Placed>& to) {
  to.push_back({prefix + "gate_proj.weight", mlp.gate_up, 0, 0});
  to.push_back({prefix + "up_proj.weight", mlp.gate_up, 0, 1});
  to.push_back({prefix + "down_proj.weight", mlp.down});
}

void place_attention(const std::string& prefix, const LayerWeights& layer,
                     const nlohmann::json& config, std::vector<Placed>& to) {
  if (const auto* gqa = std::get_if<GqaWeights>(&layer.attention)) {
    const uint32_t head_dim = config["head_dim"];
    const uint32_t q = config["num_attention_heads"].get<uint32_t>() * head_dim;
    const uint32_t kv = config["num_key_value_heads"].get<uint32_t>() * head_dim;
    to.push_back({prefix + "q_proj.weight", gqa->qkv, 0});
    to.push_back({prefix + "k_proj.weight", gqa->qkv, q});
    to.push_back({prefix + "v_proj.weight", gqa->qkv, q + kv});
    to.push_back({prefix + "o_proj.weight", gqa->output});
    return;
  }
  const auto& mla = std::get<MlaWeights>(layer.attention);
  const bool direct = config["q_lora_rank"].is_null();
  if (!direct) to.push_back({prefix + "q_a_proj.weight", mla.q_a});
  to.push_back({prefix + (direct ? "q_proj.weight" : "q_b_proj.weight"), mla.q_b});
  to.push_back({prefix + "kv_a_proj_with_mqa.weight", mla.kv_a});
  to.push_back({prefix + "o_proj.weight", mla.output});
}

// All matrices but kv_b_proj.
std::vector<Placed> place_all(const DecoderWeights& weights, const nlohmann::json& config) {
  std::vector<Placed> to = {{"model.embed_tokens.weight", weights.embedding}};
  const bool tied = config["tie_word_embeddings"];
  to.push_back({tied ? "model.embed_tokens.weight" : "lm_head.weight", weights.head});
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    place_attention(prefix + "self_attn.", weights.layers[i], config, to);
    if (const auto* mlp = std::get_if<MlpWeights>(&weights.layers[i].mlp)) {
      place_mlp(prefix + "mlp.", *mlp, to);
      continue;
    }
    const auto& moe = std::get<MoeWeights>(weights.layers[i].mlp);
    to.push_back({prefix + "mlp.gate.weight", moe.router});
    for (size_t e = 0; e < moe.experts.size(); ++e) {
      place_mlp(prefix + "mlp.experts." + std::to_string(e) + ".", moe.experts[e], to);
    }
    if (moe.shared.down.depth > 0) place_mlp(prefix + "mlp.shared_experts.", moe.shared, to);
  }
  return to;
}

void expect_rows(const Placed& placed, const TinyTensor& tensor) {
  ASSERT_EQ(placed.matrix.depth, tensor.shape[1]) << placed.tensor;
  for (uint32_t row = 0; row < tensor.shape[0]; ++row) {
    const auto first = tensor.values.begin() + static_cast<ptrdiff_t>(row * tensor.shape[1]);
    const std::vector<float> expected(first, first + static_cast<ptrdiff_t>(tensor.shape[1]));
    ASSERT_EQ(placed.row(row), expected) << placed.tensor << " row " << row;
  }
}

// Keys are the transpose of a head's first rows, values the rows behind them.
void expect_latent(const MlaWeights& mla, const TinyTensor& tensor, const nlohmann::json& config) {
  const uint32_t nope = config["qk_nope_head_dim"], value_dim = config["v_head_dim"];
  const uint32_t latent = config["kv_lora_rank"], heads = config["num_attention_heads"];
  ASSERT_EQ(mla.key.size(), heads);
  ASSERT_EQ(mla.value.size(), heads);
  for (uint32_t head = 0; head < heads; ++head) {
    const auto expected = [&](uint32_t row, uint32_t column) {
      return tensor.values[(head * (nope + value_dim) + row) * latent + column];
    };
    for (uint32_t i = 0; i < latent; ++i) {
      const auto row = Placed{"", mla.key[head]}.row(i);
      for (uint32_t k = 0; k < nope; ++k) ASSERT_EQ(row[k], expected(k, i));
    }
    for (uint32_t i = 0; i < value_dim; ++i) {
      const auto row = Placed{"", mla.value[head]}.row(i);
      for (uint32_t k = 0; k < latent; ++k) ASSERT_EQ(row[k], expected(nope + i, k));
    }
  }
}

void expect_all(const DecoderWeights& weights, const TinyDecoder& model) {
  for (const auto& placed : place_all(weights, model.config)) {
    expect_rows(placed, model.tensors.at(placed.tensor));
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const auto* mla = std::get_if<MlaWeights>(&weights.layers[i].attention);
    if (mla == nullptr) continue;
    const std::string name = "model.layers." + std::to_string(i) + ".self_attn.kv_b_proj.weight";
    expect_latent(*mla, model.tensors.at(name), model.config);
  }
}

// Wide enough that a scale ends within a matrix, and that q, k and v begin inside a panel's block.
nlohmann::json wide_config(const std::string& architecture) {
  auto config = tiny_config(architecture);
  config.update({{"hidden_size", 144}, {"intermediate_size", 200}});
  if (config.contains("head_dim")) config["head_dim"] = 24;
  return config;
}

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(' ', begin), names.size());
    parts.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Of embedding, head and o_proj of the last layer, and where there are any of a head's key and a
// router.
std::vector<WeightFormat> formats_of(const DecoderWeights& weights) {
  std::vector<WeightFormat> formats = {weights.embedding.format, weights.head.format};
  const LayerWeights& layer = weights.layers.back();
  if (const auto* gqa = std::get_if<GqaWeights>(&layer.attention)) {
    formats.push_back(gqa->output.format);
  } else {
    const auto& mla = std::get<MlaWeights>(layer.attention);
    formats.push_back(mla.output.format);
    formats.push_back(mla.key[0].format);
  }
  if (const auto* moe = std::get_if<MoeWeights>(&layer.mlp)) formats.push_back(moe->router.format);
  return formats;
}

constexpr auto kF32 = WeightFormat::kF32, kBf16 = WeightFormat::kBf16, kFp8 = WeightFormat::kFp8,
               kInt8 = WeightFormat::kInt8, kInt4 = WeightFormat::kInt4;
using Formats = std::vector<WeightFormat>;

class EveryArchitecture : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Weights, EveryArchitecture, ::testing::ValuesIn(kArchitectures));

TEST_P(EveryArchitecture, KeepsF32AndBf16AndF16ToTheBit) {
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    StoredCheckpoint checkpoint(TinyDecoder::random(tiny_config(GetParam()), "F32", 3));
    for (const auto& [name, tensor] : checkpoint.model.tensors) checkpoint.store_as(dtype, name);
    const auto weights = load_weights(checkpoint);
    ASSERT_TRUE(weights.ok()) << weights.status().to_string();
    // Of the formats only f32 holds what F16 does.
    EXPECT_EQ(weights.value().dtype, std::string(dtype) == "BF16" ? "bf16" : "f32");
    expect_all(weights.value(), checkpoint.model);
  }
}

TEST_P(EveryArchitecture, KeepsFp8BlocksToTheBit) {
  StoredCheckpoint checkpoint(TinyDecoder::random(wide_config(GetParam()), "F32", 4));
  checkpoint.store_layers_as_fp8();
  checkpoint.store_as("BF16", "model.embed_tokens.weight");
  if (checkpoint.tensors.contains("lm_head.weight")) checkpoint.store_as("BF16", "lm_head.weight");
  for (const auto dtype : {WeightDtype::kAuto, WeightDtype::kFp8, WeightDtype::kF32}) {
    const auto weights = load_weights(checkpoint, dtype);
    ASSERT_TRUE(weights.ok()) << weights.status().to_string();
    EXPECT_EQ(weights.value().dtype, dtype == WeightDtype::kF32 ? "f32" : "fp8");
    expect_all(weights.value(), checkpoint.model);
  }
}

std::vector<float> logits_of(const StoredCheckpoint& checkpoint) {
  TemporaryDirectory directory;
  checkpoint.write(directory.path());
  auto loaded = load_cpu_executor({.model_directory = directory.path()});
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  Executor& executor = *loaded.value();
  Slab slab(executor.layout(), 2);
  executor.bind_slab(slab.data(), slab.num_blocks());
  const auto tokens = random_tokens(40, executor.model().vocab_size, 12);
  const std::vector<BlockId> table = {1, 0};
  const BatchItem item{tokens, 0, table, true};
  const auto logits = executor.run(std::span(&item, 1), {});
  return {logits.begin(), logits.end()};
}

// The bound is that of two orders of the same sums in f32.
TEST_P(EveryArchitecture, Fp8BlocksComputeWhatTheirValuesDo) {
  StoredCheckpoint checkpoint(TinyDecoder::random(wide_config(GetParam()), "F32", 13));
  checkpoint.store_layers_as_fp8();
  const auto blocks = logits_of(checkpoint);
  StoredCheckpoint dequantised(checkpoint.model);
  dequantised.model.config.erase("quantization_config");
  const auto values = logits_of(dequantised);
  ASSERT_EQ(blocks.size(), values.size());
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(blocks[i], values[i], 2e-5f * largest) << "token " << i;
  }
}

TEST_P(EveryArchitecture, KeepsVectorsInF32) {
  const StoredCheckpoint checkpoint(TinyDecoder::random(tiny_config(GetParam()), "F32", 5));
  const auto weights = load_weights(checkpoint, WeightDtype::kInt4);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  const auto& tensors = checkpoint.model.tensors;
  const auto expect = [&](const std::vector<float>& vector, const std::string& name) {
    const auto tensor = tensors.find(name);
    EXPECT_EQ(vector, tensor == tensors.end() ? std::vector<float>() : tensor->second.values)
        << name;
  };
  const std::string prefix = "model.layers.1.", attention = prefix + "self_attn.";
  const LayerWeights& layer = weights.value().layers[1];
  expect(weights.value().final_norm, "model.norm.weight");
  expect(layer.attention_norm, prefix + "input_layernorm.weight");
  expect(layer.mlp_norm, prefix + "post_attention_layernorm.weight");
  if (const auto* gqa = std::get_if<GqaWeights>(&layer.attention)) {
    std::vector<float> bias;
    for (const char* part : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
      const auto tensor = tensors.find(attention + part);
      if (tensor != tensors.end()) std::ranges::copy(tensor->second.values, back_inserter(bias));
    }
    EXPECT_EQ(gqa->qkv_bias, bias);
    expect(gqa->q_norm, attention + "q_norm.weight");
    expect(gqa->k_norm, attention + "k_norm.weight");
  } else {
    const auto& mla = std::get<MlaWeights>(layer.attention);
    expect(mla.kv_a_norm, attention + "kv_a_layernorm.weight");
    expect(mla.q_a_norm, attention + "q_a_layernorm.weight");
  }
  if (const auto* moe = std::get_if<MoeWeights>(&layer.mlp)) {
    expect(moe->correction_bias, prefix + "mlp.gate.e_score_correction_bias");
  }
}

TEST(Weights, TheRoleDecidesTheFormat) {
  struct Case {
    WeightDtype dtype;
    const char* name;
    Formats formats;  // embedding, head, output of attention, a head's key, router
  };
  const Case cases[] = {{WeightDtype::kF32, "f32", {kF32, kF32, kF32, kF32, kF32}},
                        {WeightDtype::kBf16, "bf16", {kBf16, kBf16, kBf16, kBf16, kF32}},
                        {WeightDtype::kFp8, "fp8", {kBf16, kBf16, kFp8, kF32, kF32}},
                        {WeightDtype::kInt8, "int8", {kInt8, kInt8, kInt8, kF32, kF32}},
                        {WeightDtype::kInt4, "int4", {kInt8, kInt8, kInt4, kF32, kF32}}};
  StoredCheckpoint checkpoint(TinyDecoder::random(tiny_config("DeepseekV3ForCausalLM"), "F32", 6));
  for (const auto& [dtype, name, formats] : cases) {
    const auto weights = load_weights(checkpoint, dtype);
    ASSERT_TRUE(weights.ok()) << weights.status().to_string();
    EXPECT_EQ(weights.value().dtype, name);
    EXPECT_EQ(formats_of(weights.value()), formats) << name;
  }
  for (const auto& [name, tensor] : checkpoint.model.tensors) checkpoint.store_as("BF16", name);
  const auto weights = load_weights(checkpoint, WeightDtype::kInt4);
  EXPECT_EQ(formats_of(weights.value()), (Formats{kInt8, kInt8, kInt4, kBf16, kF32}));
}

TEST(Weights, ACheckpointOfSeveralDtypesIsServedAsItIs) {
  StoredCheckpoint checkpoint(TinyDecoder::random(tiny_config(), "F32", 7));
  checkpoint.store_as("BF16", "model.layers.1.self_attn.o_proj.weight");
  checkpoint.store_as("BF16", "model.layers.1.self_attn.q_proj.weight");  // beside f32 k and v
  const auto weights = load_weights(checkpoint);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  EXPECT_EQ(weights.value().dtype, "mixed");
  EXPECT_EQ(formats_of(weights.value()), (Formats{kF32, kF32, kBf16}));
  EXPECT_EQ(std::get<GqaWeights>(weights.value().layers[1].attention).qkv.format, kF32);
  expect_all(weights.value(), checkpoint.model);
}

TEST(Weights, TheFingerprintIsTheCheckpointsAlone) {
  const StoredCheckpoint checkpoint(TinyDecoder::random(tiny_config(), "F32", 8));
  const Fingerprint expected = load_weights(checkpoint).value().fingerprint;
  for (const auto dtype : kAllWeightDtypes) {
    EXPECT_EQ(load_weights(checkpoint, dtype).value().fingerprint, expected);
  }
  TemporaryDirectory sharded;
  checkpoint.model.write_sharded(sharded.path(), 3);
  EXPECT_EQ(load_weights(sharded.path()).value().fingerprint, expected);
  StoredCheckpoint changed = checkpoint;
  changed.tensors["model.norm.weight"].bytes[0] ^= 1;
  EXPECT_NE(load_weights(changed).value().fingerprint, expected);
  changed = checkpoint;
  changed.model.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_NE(load_weights(changed).value().fingerprint, expected);
}

TEST(Weights, LayersThatPredictFurtherAreLeftOut) {
  const auto config = tiny_config("DeepseekV3ForCausalLM");
  StoredCheckpoint checkpoint(TinyDecoder::random(config, "F32", 9));
  const StoredTensor norm = checkpoint.tensors.at("model.norm.weight");
  checkpoint.tensors["model.layers.2.enorm.weight"] = norm;
  auto weights = load_weights(checkpoint);
  EXPECT_EQ(weights.status().code(), StatusCode::kUnimplemented);
  EXPECT_NE(weights.status().message().find("model.layers.2.enorm.weight"), std::string::npos);
  checkpoint.tensors["model.layers.2.eh_proj.weight"] = norm;
  EXPECT_TRUE(load_weights(checkpoint).ok());
}

// What is wrong with one tensor of an FP8 checkpoint, and what is said of it.
struct Damage {
  const char* what;
  void (*apply)(StoredCheckpoint&);
  WeightDtype dtype;
  StatusCode code;
  const char* words;
};

constexpr const char* kDown = "model.layers.1.mlp.down_proj.weight";
constexpr const char* kScales = "model.layers.1.mlp.down_proj.weight_scale_inv";
constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";

void put_float(StoredTensor& tensor, size_t index, float value) {
  std::memcpy(tensor.bytes.data() + index * sizeof(value), &value, sizeof(value));
}

const Damage kDamages[] = {
    {"AMissingTensor", [](StoredCheckpoint& c) { c.tensors.erase(kDown); }, WeightDtype::kAuto,
     StatusCode::kInvalidArgument, "down_proj.weight [144, 200] missing"},
    {"AWrongShape", [](StoredCheckpoint& c) { c.tensors[kDown].shape = {200, 144}; },
     WeightDtype::kAuto, StatusCode::kInvalidArgument, "down_proj.weight [200, 144] [144, 200]"},
    {"ADtypeOfIntegers", [](StoredCheckpoint& c) { c.tensors[kDown].dtype = "I8"; },
     WeightDtype::kAuto, StatusCode::kUnimplemented, "down_proj.weight I8 F8_E4M3"},
    {"AnFp8Vector",
     [](StoredCheckpoint& c) { c.tensors[kNorm] = {"F8_E4M3", {144}, std::string(144, '\1')}; },
     WeightDtype::kAuto, StatusCode::kUnimplemented, "input_layernorm.weight F8_E4M3"},
    {"Fp8WithoutConfiguration",
     [](StoredCheckpoint& c) { c.model.config.erase("quantization_config"); }, WeightDtype::kAuto,
     StatusCode::kInvalidArgument, "F8_E4M3 quantization_config"},
    {"MissingScales", [](StoredCheckpoint& c) { c.tensors.erase(kScales); }, WeightDtype::kAuto,
     StatusCode::kInvalidArgument, "down_proj.weight_scale_inv [2, 2] missing"},
    {"ScalesOfAnotherShape", [](StoredCheckpoint& c) { c.tensors[kScales].shape = {1, 4}; },
     WeightDtype::kAuto, StatusCode::kInvalidArgument, "weight_scale_inv [1, 4] [2, 2]"},
    {"ScalesOfAnotherDtype",
     [](StoredCheckpoint& c) { c.tensors[kScales] = {"BF16", {2, 2}, std::string(8, '\1')}; },
     WeightDtype::kAuto, StatusCode::kUnimplemented, "weight_scale_inv BF16 F32"},
    {"ANanCode", [](StoredCheckpoint& c) { c.tensors[kDown].bytes[12345] = '\xff'; },
     WeightDtype::kAuto, StatusCode::kInvalidArgument, "down_proj.weight: NaN"},
    {"ANanCodeThatIsWidened", [](StoredCheckpoint& c) { c.tensors[kDown].bytes[12345] = '\x7f'; },
     WeightDtype::kF32, StatusCode::kInvalidArgument, "down_proj.weight: NaN"},
    {"AnInfiniteScale", [](StoredCheckpoint& c) { put_float(c.tensors[kScales], 3, INFINITY); },
     WeightDtype::kAuto, StatusCode::kInvalidArgument, "down_proj.weight_scale_inv: infinity"},
    {"ANanThatNoIntegerHolds",
     [](StoredCheckpoint& c) { put_float(c.tensors["model.embed_tokens.weight"], 700, NAN); },
     WeightDtype::kInt8, StatusCode::kInvalidArgument, "embed_tokens.weight: NaN"},
    {"ATensorOfAnotherModel",
     [](StoredCheckpoint& c) { c.tensors["model.layers.1.mlp.gate.bias"] = c.tensors[kNorm]; },
     WeightDtype::kAuto, StatusCode::kUnimplemented, "mlp.gate.bias LlamaForCausalLM"},
};

class EveryDamage : public ::testing::TestWithParam<Damage> {};
INSTANTIATE_TEST_SUITE_P(Weights, EveryDamage, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.what; });

TEST_P(EveryDamage, IsNamed) {
  StoredCheckpoint checkpoint(TinyDecoder::random(wide_config("LlamaForCausalLM"), "F32", 10));
  checkpoint.store_layers_as_fp8();
  GetParam().apply(checkpoint);
  const auto weights = load_weights(checkpoint, GetParam().dtype);
  ASSERT_FALSE(weights.ok());
  const Status& status = weights.status();
  EXPECT_EQ(status.code(), GetParam().code) << status.to_string();
  for (const auto& word : split(GetParam().words)) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << '"' << word << "\" is not in: " << status.message();
  }
}

// Group after group of what a 4-bit and an 8-bit GGUF hold.
TEST(Weights, Int4AndItsInt8EmbeddingKeepWhatWasQuantisedBefore) {
  StoredCheckpoint checkpoint(TinyDecoder::random(wide_config("LlamaForCausalLM"), "F32", 11));
  for (auto& [name, tensor] : checkpoint.model.tensors) {
    if (tensor.shape.size() != 2) continue;
    const bool vocabulary = name == "model.embed_tokens.weight";
    const uint64_t columns = tensor.shape[1];
    for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
      for (uint64_t k = 0; k < columns; k += kernels::kGroup) {
        const uint64_t group = row * 31 + k;
        const float scale =
            kernels::widen_f16(static_cast<uint16_t>(0x1c00 + group * 37 % 0x800));  // 2^-8 to 2^-6
        const float minimum = -kernels::widen_f16(static_cast<uint16_t>(0x2800 + group % 0x400));
        for (uint64_t i = k; i < std::min(columns, k + kernels::kGroup); ++i) {
          // The largest code of a group is used, as quantising makes it.
          const auto byte = static_cast<float>((group + i * 7) % 255) - 127.0f;
          const auto nibble = static_cast<float>((group + i * 5) % 16);
          float& value = tensor.values[row * columns + i];
          value = vocabulary ? scale * (i == k ? 127.0f : byte)
                             : scale * (i == k       ? 0.0f
                                        : i == k + 1 ? 15.0f
                                                     : nibble) +
                                   minimum;
        }
      }
    }
    checkpoint.store_as("F32", name);
  }
  const auto weights = load_weights(checkpoint, WeightDtype::kInt4);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  expect_all(weights.value(), checkpoint.model);
}

}  // namespace
}  // namespace crossdock::testing
