#include "crossdock/blocks/kv_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace crossdock {
namespace {

KvLayout example() {
  KvLayout layout{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kBf16};
  for (uint8_t i = 0; i < 16; ++i) layout.model[i] = i;
  return layout;
}

std::string hex(const Fingerprint& fingerprint) {
  std::string text;
  char buffer[3];
  for (const uint8_t byte : fingerprint) {
    std::snprintf(buffer, sizeof(buffer), "%02x", byte);
    text += buffer;
  }
  return text;
}

TEST(KvLayout, SizesAndOffsetsPartitionTheBlock) {
  const KvLayout layout = example();
  EXPECT_EQ(layout.head_bytes(), 32u * 64 * 2);
  EXPECT_EQ(layout.layer_bytes(), 2u * 3 * 32 * 64 * 2);
  EXPECT_EQ(layout.block_bytes(), 30 * layout.layer_bytes());
  EXPECT_EQ(layout.stride_bytes() % kBlockAlignment, 0u);
  EXPECT_LT(layout.stride_bytes() - layout.block_bytes(), kBlockAlignment);
  size_t expected = 0;
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
      EXPECT_EQ(layout.k_offset(layer, head), expected);
      EXPECT_EQ(layout.v_offset(layer, head), expected + layout.head_bytes());
      expected += 2 * layout.head_bytes();
    }
  }
  EXPECT_EQ(expected, layout.block_bytes());
}

// Computed with Python's hashlib over the documented encoding.
TEST(KvLayout, FingerprintIsTheDocumentedHash) {
  EXPECT_EQ(hex(example().fingerprint()), "488d49c07f4f2529a7be6fad0ff29c1a");
  EXPECT_EQ(hex(KvLayout{}.fingerprint()), "c462e1ee3cb9e48119d36a9742a30f66");
}

TEST(KvLayout, EveryFieldChangesTheFingerprintAndTheText) {
  std::vector<KvLayout> layouts(8, example());
  layouts[1].model[15] ^= 1;
  layouts[2].num_layers = 31;
  layouts[3].num_kv_heads = 4;
  layouts[4].head_dim = 128;
  layouts[5].dtype = DType::kF32;
  layouts[6].tensor_parallel_rank = 1;
  layouts[7].tensor_parallel_size = 2;
  std::set<Fingerprint> fingerprints;
  std::set<std::string> texts;
  for (const KvLayout& layout : layouts) {
    fingerprints.insert(layout.fingerprint());
    // Without the fingerprint at its end: the values themselves must tell the layouts apart.
    const std::string text = layout.to_string();
    texts.insert(text.substr(0, text.find(", fingerprint=")));
  }
  EXPECT_EQ(fingerprints.size(), layouts.size());
  EXPECT_EQ(texts.size(), layouts.size());
}

TEST(KvLayout, TextNamesEveryValue) {
  EXPECT_EQ(example().to_string(),
            "KvLayout{version=1, model=000102030405060708090a0b0c0d0e0f, num_layers=30, "
            "num_kv_heads=3, head_dim=64, dtype=bf16, block_tokens=32, tensor_parallel_rank=0, "
            "tensor_parallel_size=1, fingerprint=488d49c07f4f2529a7be6fad0ff29c1a}");
}

TEST(DType, HasSizesAndNames) {
  EXPECT_EQ(size_bytes(DType::kF32), 4u);
  EXPECT_EQ(size_bytes(DType::kBf16), 2u);
  EXPECT_EQ(name(DType::kF32), "f32");
  EXPECT_EQ(name(DType::kBf16), "bf16");
}

}  // namespace
}  // namespace crossdock
