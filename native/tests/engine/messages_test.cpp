#include "crossdock/engine/messages.h"

#include <gtest/gtest.h>

#include <random>

#include "crossdock/engine/config.h"
#include "crossdock/engine/peers.h"

namespace crossdock {
namespace {

link::Expect sample_expect() {
  link::Expect expect;
  expect.task = {.sequence_id = 7,
                 .prompt = {1, 2, 3},
                 .num_generated_tokens = 2,
                 .sampling = {.temperature = 0.5f, .seed = 9, .max_tokens = 4, .ignore_eos = true},
                 .tenant_salt = std::string("a\0b", 3),
                 .wants_digests = true};
  expect.task.sampling.stop_token_ids = {-1, 5};
  expect.handoff_high = 11;
  expect.source_epoch = 12;
  return expect;
}

TEST(Messages, CommandsSurviveTheCodec) {
  const auto decoded = link::decode_command(link::encode(link::Command(sample_expect())));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  const auto& expect = std::get<link::Expect>(decoded.value());
  EXPECT_EQ(expect.task.prompt, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(expect.task.num_generated_tokens, 2u);
  EXPECT_EQ(expect.task.tenant_salt, std::string("a\0b", 3));
  EXPECT_TRUE(expect.task.wants_digests);
  EXPECT_TRUE(expect.task.sampling.ignore_eos);
  EXPECT_EQ(expect.task.sampling.stop_token_ids, (std::vector<int32_t>{-1, 5}));
  EXPECT_EQ(expect.handoff_high, 11u);
  EXPECT_EQ(expect.source_epoch, 12u);
}

TEST(Messages, NestedListsSurviveTheCodec) {
  link::StatusReport report{.num_blocks = 3, .counters = {{"a", 1}, {"b", 2}}};
  const auto decoded = link::decode_event(link::encode(link::Event(report)));
  ASSERT_TRUE(decoded.ok());
  const auto& counters = std::get<link::StatusReport>(decoded.value()).counters;
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[1].name, "b");
  EXPECT_EQ(counters[1].value, 2u);
}

TEST(Messages, ATruncatedOrPaddedMessageIsRefused) {
  auto bytes = link::encode(link::Command(sample_expect()));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(link::decode_command(std::span(bytes).first(length)).ok()) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(link::decode_command(bytes).ok());
}

TEST(Messages, AnyBytesAreDecodedOrRefused) {
  std::mt19937 random(1);
  const auto original = link::encode(link::Command(sample_expect()));
  size_t num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto bytes = original;
    for (int flips = 0; flips < 3; ++flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    num_refused += !link::decode_command(bytes).ok();
  }
  EXPECT_GT(num_refused, 1000u);
}

TEST(CacheFormat, RefusesAPeerOfAnotherTensorParallelSize) {
  CacheFormat ours{{.num_layers = 2, .num_kv_heads = 4, .head_dim = 8}, "cpu"};
  CacheFormat peer = ours;
  EXPECT_TRUE(check_format(ours, encode(peer)).ok());
  peer.layout.tensor_parallel_size = 2;
  peer.layout.tensor_parallel_rank = 1;
  const auto refused = check_format(ours, encode(peer));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.status().message(),
            "tensor_parallel_size must be 1 on both sides, the peer's is 2: KV layouts differ: "
            "ours is " +
                ours.layout.to_string() + ", the peer's is " + peer.layout.to_string());
  peer.layout.tensor_parallel_rank = 2;
  EXPECT_NE(check_format(ours, encode(peer)).status().message().find("tensor_parallel_rank: must"),
            std::string::npos);
}

TEST(EngineConfig, NamesTheKeyAtFault) {
  const auto message = [](const char* json) {
    const auto config = parse_engine_config(json);
    return config.ok() ? std::string("accepted") : config.status().message();
  };
  EXPECT_NE(message("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message("{\"kv_memory_bytes\": 1}").find("model_directory"), std::string::npos);
  EXPECT_NE(message("{\"model_directory\": 3}").find("model_directory"), std::string::npos);
  const std::string good = R"("model_directory": "m", "kv_memory_bytes": 1048576)";
  EXPECT_NE(message(("{" + good + R"(, "num_threads": -1})").c_str()).find("num_threads"),
            std::string::npos);
  const std::string weights = message(("{" + good + R"(, "weight_dtype": "int5"})").c_str());
  for (const char* word : {"weight_dtype", "auto, f32, bf16, fp8, int8, int4", "int5"}) {
    EXPECT_NE(weights.find(word), std::string::npos) << weights;
  }
  EXPECT_NE(message(("{" + good + R"(, "kv_dtype": "fp4"})").c_str()).find("kv_dtype"),
            std::string::npos);
  EXPECT_NE(message(("{" + good + R"(, "tensor_parallel_size": 2})").c_str())
                .find("tensor_parallel_size must be 1, not 2"),
            std::string::npos);
  EXPECT_NE(message(("{" + good + R"(, "mla_prefill": "both"})").c_str())
                .find("mla_prefill must be absorbed or expanded, not \"both\""),
            std::string::npos);
  EXPECT_NE(message(("{" + good + R"(, "step_ms_max": -1})").c_str()).find("step_ms_max"),
            std::string::npos);
  EXPECT_NE(message(("{" + good + R"(, "speed": 1})").c_str()).find("speed"), std::string::npos);
  EXPECT_EQ(message(("{" + good + "}").c_str()), "accepted");
}

}  // namespace
}  // namespace crossdock
