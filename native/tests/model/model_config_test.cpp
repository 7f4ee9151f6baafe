// What a config.json says, and what is said about one that is wrong or asks for what is not built.
#include "crossdock/model/model_config.h"

#include <gtest/gtest.h>

#include "tiny_decoder.h"

namespace crossdock::testing {
namespace {

using nlohmann::json;
using Scaling = RopeConfig::Scaling;

class ModelConfigTest : public ::testing::Test {
 protected:
  Result<ModelConfig> load(const json& config) {
    write_file(directory_ / "config.json", config.dump());
    return load_model_config(directory_.path());
  }
  ModelConfig read(const json& config) {
    auto loaded = load(config);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? loaded.value() : ModelConfig();
  }
  // The tiny configuration of the architecture with one key changed.
  json with(const std::string& architecture, const std::string& key, const json& value) {
    json config = tiny_config(architecture);
    config[key] = value;
    return config;
  }
  void expect_refused(StatusCode code, const std::string& architecture, const std::string& key,
                      const json& value) {
    const auto loaded = load(with(architecture, key, value));
    ASSERT_FALSE(loaded.ok()) << architecture << " " << key << " " << value;
    const std::string& message = loaded.status().message();
    EXPECT_EQ(loaded.status().code(), code) << message << " for " << value;
    EXPECT_NE(message.find(directory_ / "config.json"), std::string::npos) << message;
    EXPECT_NE(message.find(key), std::string::npos) << message << " for " << value;
  }

  TemporaryDirectory directory_;
};

constexpr const char* kLlama = "LlamaForCausalLM";
constexpr const char* kQwen3Moe = "Qwen3MoeForCausalLM";
constexpr const char* kDeepseekV2 = "DeepseekV2ForCausalLM";
constexpr const char* kDeepseekV3 = "DeepseekV3ForCausalLM";

TEST_F(ModelConfigTest, ReadsALlama) {
  write_file(directory_ / "generation_config.json", R"({"eos_token_id": [7, 2, 7]})");
  const ModelConfig config = read(tiny_config());
  EXPECT_EQ(config.architecture, kLlama);
  EXPECT_EQ(config.num_layers, 2u);
  EXPECT_EQ(config.hidden_size, 40u);
  EXPECT_EQ(config.intermediate_size, 56u);
  EXPECT_EQ(config.num_heads, 6u);
  EXPECT_EQ(config.num_kv_heads, 2u);
  EXPECT_EQ(config.head_dim, 8u);
  EXPECT_EQ(config.vocab_size, 101u);
  EXPECT_EQ(config.context_tokens_max, 2048u);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.qk_norm || config.fp8_block_scaled);
  EXPECT_EQ(config.is_moe, std::vector<bool>(2, false));
  EXPECT_EQ(config.rope.dim, 8u);
  EXPECT_EQ(config.rope.scaling, Scaling::kNone);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{2, 7}));
}

TEST_F(ModelConfigTest, TakesEosFromConfigWithoutAGenerationConfig) {
  EXPECT_EQ(read(tiny_config()).eos_token_ids, (std::vector<int32_t>{2}));
}

// The keys of the checkpoint as DeepSeek publishes it.
json deepseek_v3() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"attention_bias", false},
          {"eos_token_id", 1},
          {"first_k_dense_replace", 3},
          {"hidden_act", "silu"},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", 163840},
          {"moe_intermediate_size", 2048},
          {"moe_layer_freq", 1},
          {"n_group", 8},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 128},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 61},
          {"num_key_value_heads", 128},
          {"num_nextn_predict_layers", 1},
          {"q_lora_rank", 1536},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"quantization_config",
           {{"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"quant_method", "fp8"},
            {"weight_block_size", {128, 128}}}},
          {"rms_norm_eps", 1e-06},
          {"rope_scaling",
           {{"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 40},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096},
            {"type", "yarn"}}},
          {"rope_theta", 10000},
          {"routed_scaling_factor", 2.5},
          {"scoring_func", "sigmoid"},
          {"tie_word_embeddings", false},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"torch_dtype", "bfloat16"},
          {"v_head_dim", 128},
          {"vocab_size", 129280}};
}

TEST_F(ModelConfigTest, ReadsDeepseekV3AsItIsPublished) {
  const ModelConfig config = read(deepseek_v3());
  EXPECT_EQ(config.attention, ModelConfig::Attention::kMla);
  EXPECT_EQ(config.num_kv_heads, 1u);
  EXPECT_TRUE(config.fp8_block_scaled);
  EXPECT_EQ(config.mla.q_rank, 1536u);
  EXPECT_EQ(config.mla.latent_rank, 512u);
  EXPECT_EQ(config.mla.nope_dim, 128u);
  EXPECT_EQ(config.mla.rope_dim, 64u);
  EXPECT_EQ(config.mla.value_dim, 128u);
  EXPECT_EQ(config.rope.dim, 64u);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(config.rope.scaling, Scaling::kYarn);
  EXPECT_EQ(config.rope.factor, 40.0f);
  EXPECT_EQ(config.rope.original_context_tokens, 4096u);
  EXPECT_EQ(config.rope.mscale_all_dim, 1.0f);
  EXPECT_EQ(config.moe.num_experts, 256u);
  EXPECT_EQ(config.moe.num_chosen, 8u);
  EXPECT_EQ(config.moe.num_groups, 8u);
  EXPECT_EQ(config.moe.num_chosen_groups, 4u);
  EXPECT_EQ(config.moe.shared_intermediate_size, 2048u);
  EXPECT_EQ(config.moe.scoring, MoeConfig::Scoring::kSigmoid);
  EXPECT_EQ(config.moe.selection, MoeConfig::Selection::kGroupTopTwo);
  EXPECT_TRUE(config.moe.normalise);
  EXPECT_EQ(config.moe.scale, 2.5f);
  EXPECT_FALSE(config.is_moe[2]);
  EXPECT_TRUE(config.is_moe[3]);
}

TEST_F(ModelConfigTest, ReadsDeepseekV2) {
  json config = tiny_config(kDeepseekV2);
  const ModelConfig limited = read(config);
  EXPECT_EQ(limited.mla.q_rank, 0u);
  EXPECT_EQ(limited.moe.scoring, MoeConfig::Scoring::kSoftmax);
  EXPECT_EQ(limited.moe.selection, MoeConfig::Selection::kGroupMax);
  EXPECT_EQ(limited.moe.shared_intermediate_size, 48u);
  EXPECT_EQ(limited.is_moe, (std::vector<bool>{false, true}));
  config["topk_method"] = "greedy";
  config["n_group"] = nullptr;
  EXPECT_EQ(read(config).moe.selection, MoeConfig::Selection::kTop);
  EXPECT_EQ(read(config).moe.num_groups, 1u);
}

TEST_F(ModelConfigTest, ReadsTheOthers) {
  EXPECT_TRUE(read(tiny_config("Qwen2ForCausalLM")).qkv_bias);
  EXPECT_TRUE(read(tiny_config("Qwen3ForCausalLM")).qk_norm);
  json qwen3 = tiny_config("Qwen3ForCausalLM");
  qwen3.erase("head_dim");
  EXPECT_EQ(read(qwen3).head_dim, 128u);
  const ModelConfig moe = read(tiny_config(kQwen3Moe));
  EXPECT_EQ(moe.is_moe, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(moe.moe.num_experts, 5u);
  EXPECT_TRUE(moe.moe.normalise);
  json newer = tiny_config(kQwen3Moe);
  newer.erase("num_experts");
  newer.update({{"num_local_experts", 4}, {"decoder_sparse_step", 2}, {"mlp_only_layers", json()}});
  EXPECT_EQ(read(newer).moe.num_experts, 4u);
  EXPECT_EQ(read(newer).is_moe, (std::vector<bool>{false, true, false}));
}

TEST_F(ModelConfigTest, AWindowBoundsTheContext) {
  const char* mistral = "MistralForCausalLM";
  EXPECT_EQ(read(with(mistral, "sliding_window", 512)).context_tokens_max, 512u);
  EXPECT_EQ(read(with(mistral, "sliding_window", nullptr)).context_tokens_max, 2048u);
  json config = with(mistral, "max_position_embeddings", 32768);
  config.erase("sliding_window");
  EXPECT_EQ(read(config).context_tokens_max, 4096u);  // what an absent key means for Mistral
  config = with("Qwen2ForCausalLM", "sliding_window", 256);
  config["use_sliding_window"] = false;
  EXPECT_EQ(read(config).context_tokens_max, 2048u);
  config["use_sliding_window"] = true;
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(read(config).context_tokens_max, 256u);
}

TEST_F(ModelConfigTest, ReadsEveryRopeScalingInBothSpellings) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 512}};
  const ModelConfig older = read(with(kLlama, "rope_scaling", llama3));
  EXPECT_EQ(older.rope.scaling, Scaling::kLlama3);
  EXPECT_EQ(older.rope.factor, 8.0f);
  EXPECT_EQ(older.rope.original_context_tokens, 512u);
  json parameters = llama3;
  parameters["rope_theta"] = 5e5;
  EXPECT_EQ(read(with(kLlama, "rope_parameters", parameters)).rope.theta, 5e5f);
  json nested = with(kLlama, "rope_parameters", {{"full_attention", parameters}});
  EXPECT_EQ(read(nested).rope.scaling, Scaling::kLlama3);
  nested["rope_parameters"]["sliding_attention"] = {{"rope_type", "default"}};
  EXPECT_EQ(load(nested).status().code(), StatusCode::kUnimplemented);

  const json linear = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(with(kLlama, "rope_scaling", linear)).rope.scaling, Scaling::kLinear);
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}};
  const RopeConfig rope = read(with(kLlama, "rope_scaling", yarn)).rope;
  EXPECT_EQ(rope.scaling, Scaling::kYarn);
  EXPECT_EQ(rope.original_context_tokens, 2048u);  // max_position_embeddings, where it is absent
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(read(with(kLlama, "rope_scaling", {{"rope_type", "default"}})).rope.scaling,
            Scaling::kNone);
}

TEST_F(ModelConfigTest, AcceptsHarmlessKeys) {
  EXPECT_TRUE(load(with(kLlama, "transformers_version", "5.0")).ok());
  EXPECT_TRUE(load(with(kLlama, "rope_interleaved", false)).ok());
  EXPECT_TRUE(load(with(kLlama, "layer_types", {"full_attention", "full_attention"})).ok());
  EXPECT_TRUE(load(with(kLlama, "torch_dtype", "float16")).ok());
}

TEST_F(ModelConfigTest, RefusesWhatIsNotBuilt) {
  const std::tuple<const char*, const char*, json> refused[] = {
      {kLlama, "architectures", {"GemmaForCausalLM"}},
      {kLlama, "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 8.0}}},
      {kLlama, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 1}}},
      {kLlama, "rope_parameters", {{"rope_type", "longrope"}, {"rope_theta", 1e4}}},
      {kLlama, "rope_parameters", {{"partial_rotary_factor", 0.5}}},
      {kLlama, "attention_bias", true},
      {kLlama, "mlp_bias", true},
      {kLlama, "hidden_act", "gelu"},
      {kLlama, "rope_interleaved", true},
      {kLlama, "partial_rotary_factor", 0.5},
      {kLlama, "quantization_config", {{"bits", 4}}},
      {kLlama, "quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}},
      {kLlama,
       "quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e5m2"}}},
      {kLlama, "sliding_window", 4096},
      {kLlama, "layer_types", {"sliding_attention"}},
      {kLlama, "num_local_experts", 8},
      {kLlama, "torch_dtype", "float64"},
      {kLlama, "head_dim", 12},
      {"Qwen2ForCausalLM", "layer_types", {"sliding_attention"}},
      {kDeepseekV3, "scoring_func", "softmax"},
      {kDeepseekV3, "topk_method", "greedy"},
      {kDeepseekV3, "kv_lora_rank", 100},
      {kDeepseekV3, "num_key_value_heads", 2},
      {kDeepseekV2, "topk_method", "noaux_tc"},
      {kDeepseekV2, "norm_topk_prob", true}};
  for (const auto& [architecture, key, value] : refused) {
    expect_refused(StatusCode::kUnimplemented, architecture, key, value);
  }
}

TEST_F(ModelConfigTest, RefusesWhatIsBroken) {
  const std::tuple<const char*, const char*, json> refused[] = {
      {kLlama, "architectures", json::array()},
      {kLlama, "architectures", nullptr},
      {kLlama, "num_hidden_layers", 0},
      {kLlama, "num_hidden_layers", -1},
      {kLlama, "hidden_size", "40"},
      {kLlama, "intermediate_size", nullptr},
      {kLlama, "num_attention_heads", 1.5},
      {kLlama, "num_key_value_heads", 4},
      {kLlama, "num_key_value_heads", 7},
      {kLlama, "vocab_size", 1ull << 40},
      {kLlama, "max_position_embeddings", 0},
      {kLlama, "rms_norm_eps", 0.0},
      {kLlama, "rms_norm_eps", "1e-5"},
      {kLlama, "rope_theta", -1},
      {kLlama, "tie_word_embeddings", 1},
      {kLlama, "eos_token_id", 101},
      {kLlama, "eos_token_id", {1, -1}},
      {kLlama, "rope_scaling", 3},
      {kLlama, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}},
      {kLlama, "rope_scaling", {{"rope_type", "linear"}, {"factor", -2.0}}},
      {kLlama, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}, {"beta_slow", 64}}},
      {kLlama, "quantization_config", true},
      {kQwen3Moe, "num_experts_per_tok", 6},
      {kQwen3Moe, "mlp_only_layers", {3}},
      {kQwen3Moe, "mlp_only_layers", 3},
      {kDeepseekV3, "n_group", 3},
      {kDeepseekV3, "n_group", 8},  // groups of one have no best two
      {kDeepseekV3, "topk_group", 5},
      {kDeepseekV3, "topk_group", 1},  // two experts, of which three are to be chosen
      {kDeepseekV3, "num_experts_per_tok", 9},
      {kDeepseekV3, "n_shared_experts", 1u << 20},
      {kDeepseekV3, "kv_lora_rank", 0},
      {kDeepseekV3, "routed_scaling_factor", 0}};
  for (const auto& [architecture, key, value] : refused) {
    expect_refused(StatusCode::kInvalidArgument, architecture, key, value);
  }
  json config = tiny_config(kDeepseekV2);
  config.erase("q_lora_rank");
  EXPECT_NE(load(config).status().message().find("q_lora_rank"), std::string::npos);
  config = with(kLlama, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  config["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_EQ(load(config).status().code(), StatusCode::kInvalidArgument);
  write_file(directory_ / "config.json", "{ not json");
  EXPECT_NE(load_model_config(directory_.path()).status().message().find("JSON"),
            std::string::npos);
}

}  // namespace
}  // namespace crossdock::testing
