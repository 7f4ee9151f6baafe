// Quantised weights that are kept on disk: the same bytes come back, and whatever is wrong with the
// file or the directory costs time alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "crossdock/model/weight_report.h"
#include "decoder_weights.h"
#include "stored_checkpoint.h"

namespace crossdock::testing {
namespace {

namespace fs = std::filesystem;

class WeightsCacheTest : public ::testing::Test {
 protected:
  WeightsCacheTest() { StoredCheckpoint(model_).write(checkpoint_.path()); }

  DecoderWeights load(WeightDtype dtype, const std::string& cache) {
    const auto config = load_model_config(checkpoint_.path());
    const auto checkpoint = Checkpoint::open(checkpoint_.path());
    ThreadPool pool(2);
    const WeightOptions options{
        .dtype = dtype,
        .cache_directory = cache,
        .on_cache_warning = [&](const std::string& message) { warnings_.push_back(message); }};
    auto weights = DecoderWeights::load(checkpoint.value(), config.value(), options, pool);
    EXPECT_TRUE(weights.ok()) << weights.status().to_string();
    return std::move(weights).value();
  }
  // The whole arena, as a start without a cache has it and as one with the cache has it.
  void expect_same(WeightDtype dtype) {
    const auto plain = load(dtype, "");
    const auto cached = load(dtype, cache_.path());
    ASSERT_EQ(plain.arena.size(), cached.arena.size());
    EXPECT_EQ(std::memcmp(plain.arena.data(), cached.arena.data(), plain.arena.size()), 0);
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(cache_.path())) paths.push_back(entry.path());
    std::ranges::sort(paths);
    return paths;
  }

  TinyDecoder model_ = TinyDecoder::random(tiny_config("DeepseekV3ForCausalLM"), "F32", 21);
  TemporaryDirectory checkpoint_, cache_;
  std::vector<std::string> warnings_;
};

TEST_F(WeightsCacheTest, OneFileForEachDtypeThatIsQuantised) {
  for (const auto dtype : kAllWeightDtypes) {
    expect_same(dtype);  // writes
    expect_same(dtype);  // reads
  }
  const auto kept = files();
  ASSERT_EQ(kept.size(), 3u);
  for (const char* name : {"-fp8.packed", "-int4.packed", "-int8.packed"}) {
    EXPECT_EQ(std::ranges::count_if(
                  kept, [&](const fs::path& path) { return path.string().ends_with(name); }),
              1);
  }
  EXPECT_TRUE(warnings_.empty()) << warnings_.front();
}

TEST_F(WeightsCacheTest, WhatIsReadIsNotPackedAgain) {
  load(WeightDtype::kInt8, cache_.path());
  const fs::path file = files().at(0);
  const auto written = fs::last_write_time(file) - std::chrono::hours(1);
  fs::last_write_time(file, written);
  fs::create_hard_link(file, cache_ / "link");  // a file made anew would not have it
  load(WeightDtype::kInt8, cache_.path());
  EXPECT_EQ(fs::hard_link_count(file), 2u);
  EXPECT_GT(fs::last_write_time(file), written);  // marked as used
}

TEST_F(WeightsCacheTest, AnotherCheckpointIsAnotherFile) {
  load(WeightDtype::kInt8, cache_.path());
  model_.tensors["model.layers.1.mlp.gate.weight"].values[3] += 1.0f;
  StoredCheckpoint(model_).write(checkpoint_.path());
  expect_same(WeightDtype::kInt8);
  EXPECT_EQ(files().size(), 2u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(WeightsCacheTest, ADamagedFileIsNamedAndMadeAgain) {
  load(WeightDtype::kInt4, cache_.path());
  const fs::path file = files().at(0);
  const std::string good = read_file(file.string());
  const std::pair<const char*, std::string> damaged[] = {
      {"bytes", ""},
      {"bytes", good.substr(0, 100)},
      {"bytes", good.substr(0, good.size() - 1)},
      {"bytes", good + "x"},
      {"another version", std::string(good).replace(8, 1, "?")},    // magic
      {"another version", std::string(good).replace(100, 1, "?")},  // packing
      {"checksum", std::string(good).replace(5000, 1, 1, static_cast<char>(~good[5000]))},
      {"checksum",
       std::string(good).replace(good.size() - 1, 1, 1, static_cast<char>(~good.back()))}};
  for (const auto& [what, content] : damaged) {
    write_file(file.string(), content);
    warnings_.clear();
    expect_same(WeightDtype::kInt4);
    ASSERT_EQ(warnings_.size(), 1u) << what;
    EXPECT_NE(warnings_[0].find(file.string()), std::string::npos) << warnings_[0];
    EXPECT_NE(warnings_[0].find(what), std::string::npos) << warnings_[0];
    EXPECT_EQ(read_file(file.string()), good);
  }
}

TEST_F(WeightsCacheTest, ADirectoryThatCannotBeUsedCostsTheCacheAlone) {
  write_file(cache_ / "file", "no directory");
  const auto plain = load(WeightDtype::kInt8, "");
  const auto weights = load(WeightDtype::kInt8, cache_ / "file");
  EXPECT_EQ(std::memcmp(plain.arena.data(), weights.arena.data(), plain.arena.size()), 0);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(cache_ / "file"), std::string::npos) << warnings_[0];
}

TEST_F(WeightsCacheTest, TheReportCountsWhatStaysExact) {
  const auto report_of = [&](WeightDtype dtype) {
    auto report = report_weights(checkpoint_.path(), {dtype, cache_.path(), {}}, 2);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.value();
  };
  const WeightReport f32 = report_of(WeightDtype::kAuto);
  EXPECT_EQ(f32.dtype, "f32");
  EXPECT_EQ(f32.file, "");
  EXPECT_EQ(f32.num_exact, f32.num_weights);
  uint64_t num_weights = 0;
  for (const auto& [name, tensor] : model_.tensors) {
    if (tensor.shape.size() == 2) num_weights += tensor.values.size();
  }
  EXPECT_EQ(f32.num_weights, num_weights);
  EXPECT_GE(f32.memory_bytes, num_weights * 4);
  const WeightReport int4 = report_of(WeightDtype::kInt4);
  EXPECT_EQ(int4.dtype, "int4");
  EXPECT_EQ(int4.num_weights, num_weights);
  EXPECT_LT(int4.num_exact, num_weights);
  EXPECT_EQ(int4.file, files().at(0).string());
  EXPECT_EQ(fs::file_size(int4.file), 4096 + int4.memory_bytes);
  EXPECT_EQ(report_weights(checkpoint_ / "nowhere", {}, 1).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace crossdock::testing
