// What a model directory may be wrong about, and what is said then.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "crossdock/model/executor.h"
#include "tiny_decoder.h"

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
  TinyDecoder model_ = TinyDecoder::random(tiny_config(), "F32", 1);
};

const std::string kKProj = "model.layers.1.self_attn.k_proj.weight";

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
  std::string integers = model.safetensors();
  for (size_t at = 0; (at = integers.find("\"BF16\"", at)) != std::string::npos;) {
    integers.replace(at, 6, "\"I16\" ");
  }
  expect_error(load_with_file(integers), StatusCode::kUnimplemented, {"I16", "embed_tokens"});
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
