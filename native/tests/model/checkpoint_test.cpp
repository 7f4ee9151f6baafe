// What a model directory may be wrong about, and what is said then.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "crossdock/model/executor.h"
#include "tiny_llama.h"

namespace crossdock::testing {
namespace {

Status load(const std::string& directory) {
  auto executor = load_cpu_executor({.model_directory = directory});
  return executor.ok() ? Status() : executor.status();
}

Fingerprint model_fingerprint(const std::string& directory) {
  auto executor = load_cpu_executor({.model_directory = directory});
  EXPECT_TRUE(executor.ok()) << executor.status().to_string();
  return executor.value()->layout().model;
}

void expect_error(const Status& status, StatusCode code, std::vector<std::string> parts) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  for (const auto& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << '"' << part << "\" is not in: " << status.message();
  }
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override { model_.write(directory_.path()); }
  Status load_with_config(const std::string& key, const nlohmann::json& value) {
    auto config = model_.config;
    config[key] = value;
    write_file(directory_ / "config.json", config.dump());
    return load(directory_.path());
  }
  Status load_with_file(const std::string& content) {
    write_file(directory_ / "model.safetensors", content);
    return load(directory_.path());
  }
  // The file with its header replaced by `edit` of it.
  template <typename Edit>
  std::string with_header(const Edit& edit) const {
    const std::string file = model_.safetensors();
    uint64_t size = 0;
    std::memcpy(&size, file.data(), sizeof(size));
    auto header = nlohmann::json::parse(file.substr(8, size));
    edit(header);
    const std::string text = header.dump();
    const uint64_t new_size = text.size();
    return std::string(reinterpret_cast<const char*>(&new_size), 8) + text + file.substr(8 + size);
  }

  TemporaryDirectory directory_;
  TinyLlama model_ = TinyLlama::random(tiny_config(), "F32", 1);
};

const std::string kKProj = "model.layers.1.self_attn.k_proj.weight";

TEST_F(CheckpointTest, ReadsTheConfiguration) {
  write_file(directory_ / "generation_config.json", R"({"eos_token_id": [7, 2, 7]})");
  const auto config = load_model_config(directory_.path());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config.value().num_layers, 2u);
  EXPECT_EQ(config.value().hidden_size, 40u);
  EXPECT_EQ(config.value().intermediate_size, 56u);
  EXPECT_EQ(config.value().num_heads, 6u);
  EXPECT_EQ(config.value().num_kv_heads, 2u);
  EXPECT_EQ(config.value().head_dim, 8u);
  EXPECT_EQ(config.value().vocab_size, 101u);
  EXPECT_EQ(config.value().context_tokens_max, 2048u);
  EXPECT_TRUE(config.value().tie_word_embeddings);
  EXPECT_EQ(config.value().eos_token_ids, (std::vector<int32_t>{2, 7}));
}

TEST_F(CheckpointTest, TakesEosFromConfigWithoutAGenerationConfig) {
  EXPECT_EQ(load_model_config(directory_.path()).value().eos_token_ids, (std::vector<int32_t>{2}));
}

TEST_F(CheckpointTest, RefusesConfigurationsItDoesNotBuild) {
  const std::pair<const char*, nlohmann::json> refused[] = {
      {"architectures", {"MistralForCausalLM"}},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"hidden_act", "gelu"},
      {"rope_interleaved", true},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"bits", 4}}},
      {"sliding_window", 4096},
      {"torch_dtype", "float16"},
      {"head_dim", 12}};
  for (const auto& [key, value] : refused) {
    expect_error(load_with_config(key, value), StatusCode::kUnimplemented,
                 {directory_ / "config.json", key});
  }
}

TEST_F(CheckpointTest, RefusesBrokenConfigurations) {
  const std::pair<const char*, nlohmann::json> refused[] = {
      {"architectures", nlohmann::json::array()},
      {"architectures", nullptr},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", -1},
      {"hidden_size", "40"},
      {"intermediate_size", nullptr},
      {"num_attention_heads", 1.5},
      {"num_key_value_heads", 4},
      {"num_key_value_heads", 7},
      {"vocab_size", 1ull << 40},
      {"max_position_embeddings", 0},
      {"rms_norm_eps", 0.0},
      {"rms_norm_eps", "1e-5"},
      {"rope_theta", -1},
      {"tie_word_embeddings", 1},
      {"eos_token_id", 101},
      {"eos_token_id", {1, -1}},
      {"rope_scaling", 3}};
  for (const auto& [key, value] : refused) {
    expect_error(load_with_config(key, value), StatusCode::kInvalidArgument,
                 {directory_ / "config.json", key});
  }
  write_file(directory_ / "config.json", "{ not json");
  expect_error(load(directory_.path()), StatusCode::kInvalidArgument, {"config.json", "JSON"});
}

TEST_F(CheckpointTest, AcceptsHarmlessKeys) {
  EXPECT_TRUE(load_with_config("rope_scaling", {{"rope_type", "default"}}).ok());
  EXPECT_TRUE(load_with_config("transformers_version", "5.0").ok());
  EXPECT_TRUE(load_with_config("rope_interleaved", false).ok());
}

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  expect_error(load(directory_ / "nowhere"), StatusCode::kNotFound, {"nowhere/config.json"});
  std::filesystem::remove(directory_ / "model.safetensors");
  expect_error(load(directory_.path()), StatusCode::kNotFound,
               {directory_.path(), "model.safetensors.index.json"});
}

TEST_F(CheckpointTest, RefusesBadExecutorOptions) {
  expect_error(load_cpu_executor({.model_directory = directory_.path(), .num_threads = 0}).status(),
               StatusCode::kInvalidArgument, {"num_threads"});
  expect_error(
      load_cpu_executor({.model_directory = directory_.path(), .kernels = "sse2"}).status(),
      StatusCode::kInvalidArgument, {"sse2", "avx2"});
}

TEST_F(CheckpointTest, RefusesEveryTruncation) {
  const std::string file = model_.safetensors();
  for (const size_t size :
       {size_t{0}, size_t{7}, size_t{8}, size_t{500}, file.size() / 2, file.size() - 1}) {
    expect_error(load_with_file(file.substr(0, size)), StatusCode::kInvalidArgument,
                 {directory_ / "model.safetensors"});
  }
  expect_error(load_with_file(file.substr(0, file.size() - 1)), StatusCode::kInvalidArgument,
               {"truncated", "model.norm.weight"});
  expect_error(load_with_file(file + "x"), StatusCode::kInvalidArgument, {"1 bytes follow"});
}

TEST_F(CheckpointTest, RefusesABadHeader) {
  const auto edited = [&](const char* key, const nlohmann::json& value) {
    return load_with_file(with_header([&](auto& header) { header[kKProj][key] = value; }));
  };
  const auto offsets = [&] {
    nlohmann::json found;
    with_header([&](auto& header) { found = header[kKProj]["data_offsets"]; });
    return found;
  }();
  const uint64_t begin = offsets[0], end = offsets[1];
  const auto file = directory_ / "model.safetensors";
  const auto invalid = StatusCode::kInvalidArgument;
  expect_error(edited("data_offsets", {begin, end + 4}), invalid, {file, kKProj});
  expect_error(edited("data_offsets", {end, begin}), invalid, {file, kKProj});
  expect_error(edited("data_offsets", {begin - 4, end - 4}), invalid, {file, "overlaps"});
  expect_error(edited("data_offsets", {1ull << 62, (1ull << 62) + end - begin}), invalid, {file});
  expect_error(edited("data_offsets", {"0", 4}), invalid, {file, kKProj, "data_offsets"});
  expect_error(edited("shape", {1ull << 40, 1ull << 40}), invalid, {file, kKProj, "overflows"});
  expect_error(edited("shape", {16, 41}), invalid, {file, kKProj, "[16, 41]"});
  expect_error(edited("shape", "16"), invalid, {file, kKProj, "shape"});
  expect_error(edited("dtype", "F33"), invalid, {file, kKProj, "F33"});
  expect_error(edited("dtype", 5), invalid, {file, kKProj, "dtype"});
  expect_error(load_with_file(with_header([](auto& header) { header = 3; })), invalid, {file});
  std::string huge = model_.safetensors();
  huge[7] = '\x7f';
  expect_error(load_with_file(huge), invalid, {file, "header"});
}

TEST_F(CheckpointTest, RefusesWrongTensors) {
  auto model = model_;
  auto tensor = model.tensors[kKProj];
  tensor.shape = {40, 16};
  model.tensors[kKProj] = tensor;
  expect_error(load_with_file(model.safetensors()), StatusCode::kInvalidArgument,
               {directory_ / "model.safetensors", kKProj, "[40, 16]", "[16, 40]"});
  model.tensors.erase(kKProj);
  expect_error(load_with_file(model.safetensors()), StatusCode::kInvalidArgument,
               {directory_.path(), kKProj, "[16, 40]", "missing"});

  model = model_;
  model.tensors["model.layers.0.self_attn.q_proj.bias"] = {{48}, std::vector<float>(48)};
  expect_error(load_with_file(model.safetensors()), StatusCode::kUnimplemented, {"q_proj.bias"});

  const auto half = with_header([](auto& header) {
    header[kKProj]["dtype"] = "F16";
    header[kKProj]["shape"] = {32, 40};
  });
  expect_error(load_with_file(half), StatusCode::kInvalidArgument, {kKProj, "[32, 40]"});
  model = model_;
  model.dtype = "BF16";
  std::string f16 = model.safetensors();
  for (size_t at = 0; (at = f16.find("\"BF16\"", at)) != std::string::npos;) {
    f16.replace(at, 6, "\"F16\" ");
  }
  expect_error(load_with_file(f16), StatusCode::kUnimplemented, {"F16", "embed_tokens"});
}

TEST_F(CheckpointTest, ATiedHeadMayBePresentOnlyAsACopy) {
  auto model = model_;
  model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"];
  EXPECT_TRUE(load_with_file(model.safetensors()).ok());
  model.tensors["lm_head.weight"].values[5] += 1.0f;
  expect_error(load_with_file(model.safetensors()), StatusCode::kUnimplemented, {"lm_head.weight"});
}

TEST_F(CheckpointTest, ShardsAreTheSameModel) {
  TemporaryDirectory sharded;
  model_.write_sharded(sharded.path(), 3);
  EXPECT_EQ(model_fingerprint(sharded.path()), model_fingerprint(directory_.path()));

  std::filesystem::remove(sharded / "model-1.safetensors");
  expect_error(load(sharded.path()), StatusCode::kNotFound, {sharded / "model-1.safetensors"});
  model_.write_sharded(sharded.path(), 3);
  std::filesystem::copy_file(sharded / "model-0.safetensors", sharded / "model-1.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  expect_error(load(sharded.path()), StatusCode::kInvalidArgument, {"is also in"});
}

TEST_F(CheckpointTest, TheIndexMustBeTrue) {
  TemporaryDirectory sharded;
  model_.write_sharded(sharded.path(), 2);
  auto index = nlohmann::json::parse(read_file(sharded / "model.safetensors.index.json"));
  const auto load_with = [&](const nlohmann::json& changed) {
    write_file(sharded / "model.safetensors.index.json", changed.dump());
    return load(sharded.path());
  };
  auto changed = index;
  changed["weight_map"]["extra.weight"] = "model-0.safetensors";
  expect_error(load_with(changed), StatusCode::kInvalidArgument, {"extra.weight"});
  changed = index;
  changed["weight_map"][kKProj] = "../model-0.safetensors";
  expect_error(load_with(changed), StatusCode::kInvalidArgument, {kKProj, "file name"});
  changed = index;
  changed.erase("weight_map");
  expect_error(load_with(changed), StatusCode::kInvalidArgument, {"weight_map"});
}

TEST_F(CheckpointTest, TheFingerprintNamesWeightsAndConfiguration) {
  const Fingerprint original = model_fingerprint(directory_.path());
  EXPECT_EQ(model_fingerprint(directory_.path()), original);
  auto changed = model_;
  changed.tensors[kKProj].values.back() += 0.5f;
  changed.write(directory_.path());
  EXPECT_NE(model_fingerprint(directory_.path()), original);
  changed = model_;
  changed.config["rope_theta"] = 20000.0;
  changed.write(directory_.path());
  EXPECT_NE(model_fingerprint(directory_.path()), original);
}

}  // namespace
}  // namespace crossdock::testing
