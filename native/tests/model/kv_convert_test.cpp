// Every pair of dtypes: a converted block holds what the target's own stores would have written for
// the source's values, and errs no more than the two formats do.
#include "crossdock/model/kv_convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/kv_codec.h"
#include "crossdock/kernels/math.h"

namespace crossdock {
namespace {

using Block = std::vector<std::byte>;

KvLayout gqa_layout(DType dtype) {
  KvLayout layout;
  layout.num_layers = 3;
  layout.num_kv_heads = 2;
  layout.head_dim = 40;
  layout.dtype = dtype;
  return layout;
}

KvLayout latent_layout(DType dtype) {
  KvLayout layout;
  layout.kind = KvKind::kMla;
  layout.num_layers = 3;
  layout.num_kv_heads = 1;
  layout.head_dim = 256;
  layout.rope_dim = 16;
  layout.dtype = dtype;
  return layout;
}

// One token's cache in one layer: for every head K and then V, or the latent and then the rest.
using Token = std::vector<float>;

uint32_t token_floats(const KvLayout& layout) {
  return layout.kind == KvKind::kMla ? layout.head_dim + layout.rope_dim
                                     : 2 * layout.num_kv_heads * layout.head_dim;
}

void store(const KvLayout& layout, uint32_t layer, uint32_t slot, const Token& token,
           Block& block) {
  const auto type = element_type(layout.dtype);
  const uint32_t dim = layout.head_dim;
  if (layout.kind == KvKind::kMla) {
    kernels::store_latent_row(token.data(), token.data() + dim, {type, dim, layout.rope_dim},
                              block.data() + layout.row_offset(layer, slot));
    return;
  }
  for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
    const float* k = token.data() + size_t{2} * head * dim;
    kernels::store_k(k, dim, slot, type, block.data() + layout.k_offset(layer, head));
    kernels::store_v(k + dim, dim, slot, type, block.data() + layout.v_offset(layer, head));
  }
}

float decode(const std::byte* elements, DType dtype, size_t index, float scale) {
  const auto code = std::to_integer<uint8_t>(elements[index]);
  switch (dtype) {
    case DType::kF32: return reinterpret_cast<const float*>(elements)[index];
    case DType::kBf16:
      return kernels::widen_bf16(reinterpret_cast<const uint16_t*>(elements)[index]);
    case DType::kFp8E5m2: return kernels::E5m2::decode(code) * scale;
    default: return kernels::E4m3::decode(code) * scale;
  }
}

float scale_at(const std::byte* scales, uint32_t index) {
  float scale = 0.0f;
  std::memcpy(&scale, scales + index * sizeof(float), sizeof(float));
  return scale;
}

Token load(const KvLayout& layout, uint32_t layer, uint32_t slot, const Block& block) {
  Token token;
  const uint32_t dim = layout.head_dim;
  if (layout.kind == KvKind::kMla) {
    const bool scaled = layout.dtype == DType::kFp8DsMla;
    const std::byte* row = block.data() + layout.row_offset(layer, slot);
    for (uint32_t i = 0; i < dim; ++i) {
      token.push_back(decode(row, layout.dtype, i, scaled ? scale_at(row + dim, i / 128) : 1.0f));
    }
    const std::byte* rope = row + (scaled ? dim + dim / 32 : dim * size_bytes(layout.dtype));
    for (uint32_t i = 0; i < layout.rope_dim; ++i) {
      token.push_back(decode(rope, scaled ? DType::kBf16 : layout.dtype, i, 1.0f));
    }
    return token;
  }
  for (uint32_t part = 0; part < 2 * layout.num_kv_heads; ++part) {
    const bool is_key = part % 2 == 0;
    const std::byte* elements = block.data() + (is_key ? layout.k_offset(layer, part / 2)
                                                       : layout.v_offset(layer, part / 2));
    const float scale =
        layout.is_scaled() ? scale_at(elements + layout.scales_offset(), slot) : 1.0f;
    for (uint32_t i = 0; i < dim; ++i) {
      const size_t index = is_key ? size_t{i} * kBlockTokens + slot : size_t{slot} * dim + i;
      token.push_back(decode(elements, layout.dtype, index, scale));
    }
  }
  return token;
}

struct Pair {
  KvLayout from;
  KvLayout to;
};

std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      for (const Pair& pair :
           {Pair{gqa_layout(from), gqa_layout(to)}, Pair{latent_layout(from), latent_layout(to)}}) {
        if (pair.from.validate().ok() && pair.to.validate().ok()) pairs.push_back(pair);
      }
    }
  }
  return pairs;
}

// A block of random tokens in its first slots, zeros behind them.
Block random_block(const KvLayout& layout, uint32_t num_slots, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Block block(layout.stride_bytes());
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (uint32_t slot = 0; slot < num_slots; ++slot) {
      Token token(token_floats(layout));
      const float spread = std::ldexp(1.0f, static_cast<int>(random() % 12) - 6);
      for (float& value : token) value = normal(random) * spread;
      store(layout, layer, slot, token, block);
    }
  }
  return block;
}

std::string title(const Pair& pair) { return name(pair.from.dtype) + " to " + name(pair.to.dtype); }

TEST(KvConvert, EveryPairIsTheTargetsEncodingOfTheSourcesValues) {
  size_t num_gqa = 0, num_latent = 0;
  for (const Pair& pair : all_pairs()) {
    ++(pair.from.kind == KvKind::kMla ? num_latent : num_gqa);
    const Block source = random_block(pair.from, 27, 3);
    Block target(pair.to.stride_bytes(), std::byte{0x77}), expected = target;
    convert_block(pair.from, pair.to, source.data(), target.data());
    if (pair.from == pair.to) {
      std::copy_n(source.begin(), pair.from.block_bytes(), expected.begin());
    } else {
      for (uint32_t layer = 0; layer < pair.to.num_layers; ++layer) {
        for (uint32_t slot = 0; slot < kBlockTokens; ++slot) {
          store(pair.to, layer, slot, load(pair.from, layer, slot, source), expected);
        }
      }
    }
    EXPECT_TRUE(target == expected) << title(pair);
    // The unused slots stay zero bytes, whatever the dtype.
    Block zeroed = target;
    zero_tail(pair.to, 27, zeroed.data());
    EXPECT_TRUE(target == zeroed) << title(pair);
  }
  EXPECT_EQ(num_gqa, 16u);
  EXPECT_EQ(num_latent, 9u);
}

// Relative error of a normal value, and half a subnormal over the largest value, of a dtype.
struct Error {
  double relative = 0.0;
  double absolute = 0.0;
};

Error error_of(DType dtype, bool rope) {
  switch (dtype) {
    case DType::kF32: return {};
    case DType::kBf16: return {0x1p-8, 0.0};
    case DType::kFp8E5m2: return {0x1p-3, 0x1p-17 / 57344};
    default: return rope ? Error{0x1p-8, 0.0} : Error{0x1p-4, 0x1p-10 / 448};
  }
}

// Both formats round once; the second one rounds what the first one made of a value.
double error_bound(const Pair& pair, double value, double largest, bool rope) {
  const Error first = error_of(pair.from.dtype, rope), second = error_of(pair.to.dtype, rope);
  const double after_first = std::max(std::fabs(value) * first.relative, largest * first.absolute);
  const double rest = std::fabs(value) + after_first;
  const double grown = largest * (1.0 + first.relative);
  const double after_second =
      pair.from == pair.to ? 0.0 : std::max(rest * second.relative, grown * second.absolute);
  return (after_first + after_second) * (1.0 + 0x1p-20) + std::fabs(value) * 0x1p-21;
}

TEST(KvConvert, TheErrorIsThatOfTheTwoFormats) {
  for (const Pair& pair : all_pairs()) {
    const KvLayout exact =
        pair.from.kind == KvKind::kMla ? latent_layout(DType::kF32) : gqa_layout(DType::kF32);
    const Block original = random_block(exact, 32, 4);
    Block source(pair.from.stride_bytes()), target(pair.to.stride_bytes());
    convert_block(exact, pair.from, original.data(), source.data());
    convert_block(pair.from, pair.to, source.data(), target.data());
    const uint32_t group = pair.from.kind == KvKind::kMla ? 128 : exact.head_dim;
    for (uint32_t slot = 0; slot < kBlockTokens; ++slot) {
      const Token before = load(exact, 1, slot, original), after = load(pair.to, 1, slot, target);
      for (size_t i = 0; i < before.size(); ++i) {
        const bool rope = pair.from.kind == KvKind::kMla && i >= exact.head_dim;
        double largest = 0.0;
        const size_t first = i / group * group, end = std::min(first + group, before.size());
        for (size_t j = first; j < end; ++j) {
          largest = std::max(largest, std::fabs(double{before[j]}));
        }
        ASSERT_LE(std::fabs(double{after[i]} - before[i]),
                  error_bound(pair, before[i], largest, rope))
            << title(pair) << ", value " << before[i];
      }
    }
  }
}

TEST(KvConvert, SomeLayersLeaveTheOthersAlone) {
  for (const Pair& pair : all_pairs()) {
    const Block source = random_block(pair.from, 32, 5);
    Block whole(pair.to.stride_bytes(), std::byte{0x33}), parts = whole;
    convert_block(pair.from, pair.to, source.data(), whole.data());
    convert_layers(pair.from, pair.to, {1, 2}, source.data(), parts.data());
    for (size_t at = 0; at < parts.size(); ++at) {
      const size_t layer = at / pair.to.layer_bytes();
      ASSERT_EQ(parts[at], layer == 1 ? whole[at] : std::byte{0x33}) << title(pair) << " " << at;
    }
    convert_layers(pair.from, pair.to, {0, 1}, source.data(), parts.data());
    convert_layers(pair.from, pair.to, {2, 3}, source.data(), parts.data());
    convert_layers(pair.from, pair.to, {3, 3}, source.data(), parts.data());
    EXPECT_TRUE(parts == whole) << title(pair);
  }
}

TEST(KvConvert, ATokenThatIsNoNumberStaysSo) {
  for (const Pair& pair : all_pairs()) {
    Block source = random_block(pair.from, 32, 6);
    Token token(token_floats(pair.from), 1.0f);
    token[5] = std::numeric_limits<float>::quiet_NaN();
    store(pair.from, 2, 7, token, source);
    Block target(pair.to.stride_bytes());
    convert_block(pair.from, pair.to, source.data(), target.data());
    EXPECT_TRUE(std::isnan(load(pair.to, 2, 7, target)[5])) << title(pair);
    for (const uint32_t slot : {6u, 8u}) {
      for (const float value : load(pair.to, 2, slot, target)) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

}  // namespace
}  // namespace crossdock
