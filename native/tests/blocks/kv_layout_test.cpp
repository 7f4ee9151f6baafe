#include "crossdock/blocks/kv_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace crossdock {
namespace {

KvLayout example() {
  KvLayout layout{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kBf16};
  for (uint8_t i = 0; i < 16; ++i) layout.model[i] = i;
  return layout;
}

// DeepSeek-V3's cache.
KvLayout latent_example(DType dtype) {
  KvLayout layout = example();
  layout.kind = KvKind::kMla;
  layout.num_layers = 61;
  layout.num_kv_heads = 1;
  layout.head_dim = 512;
  layout.rope_dim = 64;
  layout.dtype = dtype;
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

// Of the byte at an offset within block_bytes().
size_t slot_of(const KvLayout& layout, size_t offset) {
  size_t at = offset % layout.layer_bytes();
  if (layout.kind == KvKind::kMla) return at / layout.row_bytes();
  const bool is_key = at % (2 * layout.head_bytes()) < layout.head_bytes();
  at %= layout.head_bytes();
  if (at >= layout.scales_offset()) return (at - layout.scales_offset()) / sizeof(float);
  const size_t element = at / size_bytes(layout.dtype);
  return is_key ? element % kBlockTokens : element / layout.head_dim;
}

TEST(KvLayout, HoldsTheHeadsOfItsRank) {
  KvLayout layout = example();
  layout.num_kv_heads = 8;
  const size_t whole = layout.layer_bytes();
  layout.tensor_parallel_size = 4;
  layout.tensor_parallel_rank = 3;
  EXPECT_TRUE(layout.validate().ok());
  EXPECT_EQ(layout.num_rank_heads(), 2u);
  EXPECT_EQ(layout.first_rank_head(), 6u);
  EXPECT_EQ(layout.layer_bytes(), whole / 4);
  layout.tensor_parallel_size = 16;
  layout.tensor_parallel_rank = 5;
  EXPECT_EQ(layout.num_rank_heads(), 1u);
  EXPECT_EQ(layout.first_rank_head(), 2u);
  EXPECT_EQ(layout.num_replicas(), 2u);
}

TEST(KvLayout, RefusesRanksThatCannotShareTheHeads) {
  KvLayout layout = example();  // of three heads
  layout.tensor_parallel_size = 2;
  EXPECT_EQ(layout.validate().message(),
            "tensor_parallel_size: 2 and the model's 3 KV heads: neither divides the other");
  layout.tensor_parallel_size = 3;
  layout.tensor_parallel_rank = 3;
  EXPECT_EQ(layout.validate().message(),
            "tensor_parallel_rank: must be below tensor_parallel_size, 3, not 3");
  layout.tensor_parallel_rank = layout.tensor_parallel_size = 0;
  EXPECT_FALSE(layout.validate().ok());
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

TEST(KvLayout, ScalesFollowTheElementsOfAHead) {
  KvLayout layout = example();
  for (const DType dtype : {DType::kFp8E4m3, DType::kFp8E5m2}) {
    layout.dtype = dtype;
    EXPECT_TRUE(layout.is_scaled());
    EXPECT_EQ(layout.scales_offset(), 32u * 64);
    EXPECT_EQ(layout.head_bytes(), 32u * 64 + 32 * 4);
    EXPECT_EQ(layout.v_offset(2, 1), 2 * layout.layer_bytes() + 3 * layout.head_bytes());
  }
}

TEST(KvLayout, LatentRowsAreWhatTheFieldStores) {
  EXPECT_EQ(latent_example(DType::kFp8DsMla).row_bytes(), 656u);
  EXPECT_EQ(latent_example(DType::kBf16).row_bytes(), 1152u);
  EXPECT_EQ(latent_example(DType::kF32).row_bytes(), 2304u);
  const KvLayout layout = latent_example(DType::kFp8DsMla);
  EXPECT_EQ(layout.row_offset(3, 5), size_t{656} * (3 * 32 + 5));
  EXPECT_EQ(layout.block_bytes(), size_t{61} * 32 * 656);
  // 32,768 tokens of DeepSeek-V3.
  EXPECT_NEAR(1024.0 * static_cast<double>(layout.stride_bytes()), 1.31e9, 0.01e9);
}

TEST(KvLayout, ValidationNamesWhatDoesNotSuit) {
  for (const DType dtype : kAllDTypes) {
    KvLayout layout = example();
    layout.dtype = dtype;
    EXPECT_EQ(layout.validate().ok(), dtype != DType::kFp8DsMla) << name(dtype);
    const bool scaled = dtype == DType::kFp8E4m3 || dtype == DType::kFp8E5m2;
    EXPECT_EQ(latent_example(dtype).validate().ok(), !scaled) << name(dtype);
  }
  KvLayout odd = latent_example(DType::kFp8DsMla);
  odd.head_dim = 192;
  EXPECT_EQ(odd.validate().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(odd.validate().message().find("192"), std::string::npos);
}

TEST(KvLayout, OnlyTheDtypeMayDifferForAConversion) {
  KvLayout other = example();
  other.dtype = DType::kFp8E4m3;
  EXPECT_TRUE(example().converts_from(other));
  other.num_layers = 31;
  EXPECT_FALSE(example().converts_from(other));
}

TEST(KvLayout, AZeroedTailLeavesTheUsedSlotsAlone) {
  for (const DType dtype : kAllDTypes) {
    for (KvLayout layout : {example(), latent_example(dtype)}) {
      layout.dtype = dtype;
      layout.num_layers = 2;
      if (!layout.validate().ok()) continue;
      for (const uint32_t used : {0u, 1u, 31u, 32u}) {
        std::vector<std::byte> block(layout.stride_bytes(), std::byte{0x5a});
        zero_tail(layout, used, block.data());
        for (size_t at = 0; at < block.size(); ++at) {
          const bool zeroed = at < layout.block_bytes() && slot_of(layout, at) >= used;
          ASSERT_EQ(block[at], zeroed ? std::byte{} : std::byte{0x5a})
              << layout.to_string() << " used " << used << " at " << at;
        }
      }
    }
  }
}

// Computed with Python's hashlib over the documented encoding.
TEST(KvLayout, FingerprintIsTheDocumentedHash) {
  EXPECT_EQ(hex(example().fingerprint()), "9566375a97da705180e01302d00df3cf");
  EXPECT_EQ(hex(KvLayout{}.fingerprint()), "39c0b9570def3f8ad71f021b39b3f090");
  EXPECT_EQ(hex(latent_example(DType::kFp8DsMla).fingerprint()),
            "bc4ae7d03b2c9e7d7c53443c3b293af7");
}

TEST(KvLayout, EveryFieldChangesTheFingerprintAndTheText) {
  std::vector<KvLayout> layouts(10, example());
  layouts[1].model[15] ^= 1;
  layouts[2].num_layers = 31;
  layouts[3].num_kv_heads = 4;
  layouts[4].head_dim = 128;
  layouts[5].dtype = DType::kF32;
  layouts[6].tensor_parallel_rank = 1;
  layouts[7].tensor_parallel_size = 2;
  layouts[8].kind = KvKind::kMla;
  layouts[9].rope_dim = 64;
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
            "KvLayout{version=2, model=000102030405060708090a0b0c0d0e0f, kind=gqa, num_layers=30, "
            "num_kv_heads=3, head_dim=64, rope_dim=0, dtype=bf16, block_tokens=32, "
            "tensor_parallel_rank=0, tensor_parallel_size=1, "
            "fingerprint=9566375a97da705180e01302d00df3cf}");
}

TEST(DType, HasSizesAndNames) {
  EXPECT_EQ(size_bytes(DType::kF32), 4u);
  EXPECT_EQ(size_bytes(DType::kBf16), 2u);
  std::set<std::string> names;
  for (const DType dtype : kAllDTypes) names.insert(name(dtype));
  EXPECT_EQ(names, (std::set<std::string>{"f32", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"}));
  EXPECT_EQ(size_bytes(DType::kFp8E4m3), 1u);
}

}  // namespace
}  // namespace crossdock
