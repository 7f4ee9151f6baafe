// Attention against a plain one in double, and every variant against the reference bit by bit,
// however tokens, heads and runs are cut.
#include "crossdock/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "crossdock/kernels/kernels.h"
#include "crossdock/kernels/kv_codec.h"
#include "floats.h"

namespace crossdock::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kScale = 0.11f;

// Those that this processor runs, the reference first.
std::vector<const Kernels*> variants() {
  std::vector<const Kernels*> found;
  for (const char* name : {"scalar", "avx2", "avx512"}) {
    auto kernels = select_kernels(name);
    if (kernels.ok()) found.push_back(kernels.value());
  }
  return found;
}

struct Form {
  ElementType type;
  uint32_t key_dim;
  uint32_t value_dim;
  bool latent;

  LatentForm rows() const { return {type, value_dim, key_dim - value_dim}; }
  size_t part_bytes(uint32_t dim) const {
    return kSlotsPerBlock * (dim * size_bytes(type) + (is_fp8(type) ? sizeof(float) : 0));
  }
  size_t block_bytes() const {
    return latent ? kSlotsPerBlock * rows().row_bytes()
                  : part_bytes(key_dim) + part_bytes(value_dim);
  }
  std::string title() const {
    return "type " + std::to_string(static_cast<int>(type)) + ", key " + std::to_string(key_dim) +
           (latent ? ", latent " : ", value ") + std::to_string(value_dim);
  }
};

// One KV head's cache of a sequence, in blocks that are scattered and whose unused slots hold NaN.
class Cache {
 public:
  Cache(const Form& form, uint32_t length, uint64_t seed)
      : form_(form),
        stride_(form.block_bytes() + 64),
        keys_(random_floats(size_t{length} * form.key_dim, seed)),
        values_(random_floats(size_t{length} * form.value_dim, seed + 1)) {
    const uint32_t num_blocks = (length + kSlotsPerBlock - 1) / kSlotsPerBlock;
    slab_.assign((num_blocks + 1) * stride_, std::byte{0xff});
    for (uint32_t i = 0; i < num_blocks; ++i) table_.push_back((i * 7 + 1) % (num_blocks + 1));
    std::sort(table_.begin(), table_.end());
    table_.erase(std::unique(table_.begin(), table_.end()), table_.end());
    for (uint32_t i = 0; table_.size() < num_blocks; ++i) {
      if (std::find(table_.begin(), table_.end(), i) == table_.end()) table_.push_back(i);
    }
    std::reverse(table_.begin(), table_.end());
    if (form.latent) {
      // The value of a latent row is the head of its key.
      for (size_t slot = 0; slot < length; ++slot) {
        std::copy_n(&keys_[slot * form.key_dim], form.value_dim, &values_[slot * form.value_dim]);
      }
    }
    for (uint32_t slot = 0; slot < length; ++slot) store(slot);
  }

  float* key(uint32_t slot) { return &keys_[size_t{slot} * form_.key_dim]; }
  float* value(uint32_t slot) {
    return form_.latent ? key(slot) : &values_[size_t{slot} * form_.value_dim];
  }
  void store(uint32_t slot) {
    std::byte* block = slab_.data() + table_[slot / kSlotsPerBlock] * stride_;
    const uint32_t at = slot % kSlotsPerBlock;
    if (form_.latent) {
      const LatentForm rows = form_.rows();
      store_latent_row(key(slot), key(slot) + form_.value_dim, rows, block + at * rows.row_bytes());
      return;
    }
    store_k(key(slot), form_.key_dim, at, form_.type, block);
    store_v(value(slot), form_.value_dim, at, form_.type, block + form_.part_bytes(form_.key_dim));
  }
  KvHead head() const {
    return {.slab = slab_.data(),
            .block_stride = stride_,
            .v_offset = form_.latent ? 0 : form_.part_bytes(form_.key_dim),
            .type = form_.type,
            .key_dim = form_.key_dim,
            .value_dim = form_.value_dim,
            .latent = form_.latent};
  }
  const uint32_t* table() const { return table_.data(); }
  const Form& form() const { return form_; }

 private:
  Form form_;
  size_t stride_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::byte> slab_;
  std::vector<uint32_t> table_;
};

// Queries [token][head][key_dim] of the last tokens of a sequence.
struct Queries {
  std::vector<float> q;
  uint32_t num_tokens;
  uint32_t num_heads;
  uint32_t first_position;
};

Queries last_tokens(const Form& form, uint32_t length, uint32_t num_tokens, uint32_t num_heads) {
  return {random_floats(size_t{num_tokens} * num_heads * form.key_dim, num_heads + length),
          num_tokens, num_heads, length - num_tokens};
}

// How the work is cut.
struct Cut {
  uint32_t tokens;
  uint32_t heads;
  uint32_t runs;
};

// Some tokens and heads over all their runs, into out[token][head][value_dim].
void attend_tile(const Kernels& kernels, const Cache& cache, QueryTile tile, uint32_t runs_at_once,
                 size_t out_stride, float* out) {
  const KvHead head = cache.head();
  const uint32_t rows = tile.num_rows();
  const size_t state_floats = attention_state_floats(rows, head.value_dim);
  std::vector<float> memory(2 * state_floats, 7.0f);
  std::vector<float> scratch(attention_scratch_floats(rows, head.key_dim, head.value_dim), kNan);
  const auto state = attention_state(memory.data(), rows, head.value_dim);
  const auto next = attention_state(memory.data() + state_floats, rows, head.value_dim);
  const uint32_t runs = num_runs(tile.first_position + tile.num_tokens - 1);
  for (uint32_t run = 0; run < runs; run += runs_at_once) {
    const RunRange range{run, std::min(run + runs_at_once, runs)};
    attend(kernels.attention, tile, head, range, run == 0 ? state : next, scratch.data());
    for (uint32_t row = 0; run > 0 && row < rows; ++row) {
      merge_row(state, next, row, head.value_dim);
    }
  }
  for (uint32_t row = 0; row < rows; ++row) {
    finish_row(state, row, head.value_dim,
               out + row / tile.group_heads * out_stride +
                   size_t{row % tile.group_heads} * head.value_dim);
  }
}

std::vector<float> attend_all(const Kernels& kernels, const Cache& cache, const Queries& queries,
                              const Cut& cut) {
  const Form& form = cache.form();
  const size_t q_stride = size_t{queries.num_heads} * form.key_dim;
  const size_t out_stride = size_t{queries.num_heads} * form.value_dim;
  std::vector<float> out(queries.num_tokens * out_stride);
  for (uint32_t token = 0; token < queries.num_tokens; token += cut.tokens) {
    for (uint32_t head = 0; head < queries.num_heads; head += cut.heads) {
      const QueryTile tile{.q = queries.q.data() + token * q_stride + size_t{head} * form.key_dim,
                           .token_stride = q_stride,
                           .num_tokens = std::min(cut.tokens, queries.num_tokens - token),
                           .group_heads = std::min(cut.heads, queries.num_heads - head),
                           .first_position = queries.first_position + token,
                           .block_table = cache.table(),
                           .scale = kScale};
      attend_tile(kernels, cache, tile, cut.runs, out_stride,
                  out.data() + token * out_stride + size_t{head} * form.value_dim);
    }
  }
  return out;
}

// How a head's tokens are cut in the engine: as many as a tile holds.
Cut widest(const Queries& queries) {
  const uint32_t heads = std::min(queries.num_heads, kTileRows);
  return {tile_tokens(heads), heads, 100};
}

constexpr ElementType kHeadTypes[] = {ElementType::kF32, ElementType::kBf16, ElementType::kFp8E4m3,
                                      ElementType::kFp8E5m2};
constexpr ElementType kLatentTypes[] = {ElementType::kF32, ElementType::kBf16,
                                        ElementType::kFp8E4m3};

std::vector<Form> all_forms() {
  std::vector<Form> forms;
  for (const ElementType type : kHeadTypes) {
    for (const uint32_t dim : {64u, 80u, 128u}) forms.push_back({type, dim, dim, false});
    forms.push_back({type, 192, 128, false});  // DeepSeek's expanded form
  }
  for (const ElementType type : kLatentTypes) {
    forms.push_back({type, 576, 512, true});
    forms.push_back({type, 144, 128, true});
  }
  return forms;
}

// A query's attention in double, over the values as they were before they were stored.
std::vector<double> plain_attention(Cache& cache, const float* q, uint32_t position) {
  const Form& form = cache.form();
  std::vector<double> scores(position + 1), out(form.value_dim);
  for (uint32_t slot = 0; slot <= position; ++slot) {
    for (uint32_t dim = 0; dim < form.key_dim; ++dim) {
      scores[slot] += double{kScale} * q[dim] * cache.key(slot)[dim];
    }
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (uint32_t slot = 0; slot <= position; ++slot) {
    for (uint32_t dim = 0; dim < form.value_dim; ++dim) {
      out[dim] += scores[slot] / sum * cache.value(slot)[dim];
    }
  }
  return out;
}

TEST(Attention, IsThePlainOneWithinTheTypesRounding) {
  for (const Form& form : all_forms()) {
    const double tolerance = form.type == ElementType::kF32       ? 1e-5
                             : form.type == ElementType::kBf16    ? 0.02
                             : form.type == ElementType::kFp8E4m3 ? 0.3
                                                                  : 0.6;
    for (const uint32_t length : {1u, 33u, 700u}) {
      Cache cache(form, length, length);
      const Queries queries = last_tokens(form, length, std::min(length, 3u), 2);
      const auto out = attend_all(*variants().back(), cache, queries, widest(queries));
      double error = 0.0, size = 0.0;
      for (uint32_t row = 0; row < queries.num_tokens * 2; ++row) {
        const auto expected = plain_attention(cache, &queries.q[size_t{row} * form.key_dim],
                                              queries.first_position + row / 2);
        for (uint32_t dim = 0; dim < form.value_dim; ++dim) {
          const double difference = out[size_t{row} * form.value_dim + dim] - expected[dim];
          error += difference * difference;
          size += expected[dim] * expected[dim];
        }
      }
      EXPECT_LE(std::sqrt(error / size), tolerance) << form.title() << ", length " << length;
    }
  }
}

// The reference takes each token, head and run by itself.
void expect_same(const Cache& cache, const Queries& queries, const std::string& title) {
  const auto expected = attend_all(*variants()[0], cache, queries, {1, 1, 1});
  const Cut cuts[] = {widest(queries), {1, queries.num_heads, 1}, {2, 5, 100}};
  for (const Kernels* kernels : variants()) {
    for (const Cut& cut : cuts) {
      if (kernels == variants()[0] && &cut != &cuts[0]) continue;
      EXPECT_TRUE(same_bits(attend_all(*kernels, cache, queries, cut), expected))
          << kernels->name << ", " << title << ", tiles of " << cut.tokens << " x " << cut.heads;
    }
  }
}

TEST(Attention, IsTheReferencesBitsHoweverItIsCut) {
  for (const Form& form : all_forms()) {
    for (const uint32_t length : {1u, 31u, 32u, 33u}) {
      const Cache cache(form, length, length);
      for (const uint32_t heads : {1u, 2u, 3u, 4u, 7u, 8u, 13u, 49u, 128u}) {
        if (heads > 8 && form.key_dim != 64 && (!form.latent || length < 33)) continue;
        const uint32_t tokens = std::min(length, heads > 8 ? 2u : 19u);
        expect_same(cache, last_tokens(form, length, tokens, heads),
                    form.title() + ", length " + std::to_string(length) + ", heads " +
                        std::to_string(heads));
      }
    }
  }
}

TEST(Attention, IsTheReferencesBitsOverManyRuns) {
  for (const Form& form : all_forms()) {
    const Cache cache(form, 4097, 3);
    // Of a chunk that begins in the last run but one, and of one token.
    expect_same(cache, last_tokens(form, 4097, form.key_dim == 64 ? 5 : 2, 2), form.title());
    expect_same(cache, last_tokens(form, 4097, 1, 1), form.title() + ", one head");
  }
}

TEST(Attention, OutOfRangeNumbersAreTheReferencesBits) {
  const float strange[] = {kNan, kInfinity, -kInfinity, 1e-41f, -1e-44f, 3e38f, -3e38f, -0.0f};
  for (const Form& form : all_forms()) {
    for (const float number : strange) {
      for (const bool in_query : {false, true}) {
        Cache cache(form, 45, 9);
        Queries queries = last_tokens(form, 45, 3, 5);
        if (in_query) {
          queries.q[form.key_dim + 3] = number;
        } else {
          cache.key(40)[5] = number;
          cache.value(41)[6] = number;
          cache.store(40);
          cache.store(41);
        }
        expect_same(cache, queries, form.title() + ", " + std::to_string(number));
      }
    }
  }
}

TEST(Attention, ANanReachesOnlyTheRowsThatSeeIt) {
  for (const Form& form : all_forms()) {
    Cache cache(form, 40, 2);
    cache.key(38)[3] = kNan;
    cache.value(38)[3] = kNan;
    cache.store(38);
    const Queries queries = last_tokens(form, 40, 4, 3);  // of positions 36 to 39
    for (const Kernels* kernels : variants()) {
      const auto out = attend_all(*kernels, cache, queries, widest(queries));
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t token = i / (size_t{3} * form.value_dim);
        ASSERT_EQ(std::isnan(out[i]), token >= 2) << kernels->name << ", " << form.title();
      }
    }
  }
}

TEST(BlockAttention, NothingToDoChangesNothing) {
  const std::vector<float> block(64 * 32, 1.0f), q(64, 1.0f);
  const KvBlock kv{reinterpret_cast<const std::byte*>(block.data()),
                   reinterpret_cast<const std::byte*>(block.data()), ElementType::kF32, 64};
  for (const Kernels* kernels : variants()) {
    std::vector<float> out(64, 5.0f), scratch(block_scratch_floats(1, 64));
    kernels->attention.scores({q.data(), 0, kv, out.data(), 32, scratch.data()});
    kernels->attention.weighted_sum({q.data(), 32, 0, kv, 0, 32, out.data(), scratch.data()});
    kernels->attention.weighted_sum({q.data(), 32, 1, kv, 9, 9, out.data(), scratch.data()});
    EXPECT_EQ(out, std::vector<float>(64, 5.0f)) << kernels->name;
  }
}

// The tails of the tiles: any number of rows, any multiple of eight dimensions, parts of a block.
TEST(BlockAttention, EveryTileIsTheReferencesBits) {
  for (const ElementType type : kHeadTypes) {
    for (const uint32_t dim : {8u, 16u, 24u, 40u, 72u, 128u, 136u, 200u}) {
      std::vector<std::byte> k(Form{type, dim, dim, false}.part_bytes(dim)), v(k.size());
      for (uint32_t slot = 0; slot < kSlotsPerBlock; ++slot) {
        const auto row = random_floats(2 * dim, slot);
        store_k(row.data(), dim, slot, type, k.data());
        store_v(row.data() + dim, dim, slot, type, v.data());
      }
      for (uint32_t rows = 1; rows <= 21; ++rows) {
        const auto q = random_floats(size_t{rows} * dim, rows);
        const auto p = random_floats(size_t{rows} * 64, rows + 50);
        std::vector<float> expected_scores, expected_values;
        for (const Kernels* kernels : variants()) {
          std::vector<float> scores(rows * 40, 7.0f), values(rows * dim, 7.0f);
          std::vector<float> scratch(block_scratch_floats(rows, dim), kNan);
          kernels->attention.scores(
              {q.data(), rows, {k.data(), v.data(), type, dim}, scores.data(), 40, scratch.data()});
          WeightedSum sum{p.data(), 64, rows,          {v.data(), k.data(), type, dim},
                          0,        13, values.data(), scratch.data()};
          kernels->attention.weighted_sum(sum);
          sum.slot_begin = 13;
          sum.slot_end = 32;
          kernels->attention.weighted_sum(sum);
          if (kernels == variants()[0]) {
            expected_scores = scores;
            expected_values = values;
          }
          EXPECT_TRUE(same_bits(scores, expected_scores))
              << kernels->name << " " << dim << " dims, " << rows << " rows";
          EXPECT_TRUE(same_bits(values, expected_values))
              << kernels->name << " " << dim << " dims, " << rows << " rows";
        }
      }
    }
  }
}

// Those of NaN and infinity too, which no store writes.
TEST(BlockAttention, EveryCodeOfFp8IsTheReferencesBits) {
  constexpr uint32_t kDim = 16;
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    std::vector<std::byte> block(Form{type, kDim, kDim, false}.part_bytes(kDim));
    for (size_t i = 0; i < size_t{kDim} * kSlotsPerBlock; ++i) {
      block[i] = static_cast<std::byte>(i);
    }
    const std::vector<float> scales(kSlotsPerBlock, 0.5f);
    std::memcpy(block.data() + size_t{kDim} * kSlotsPerBlock, scales.data(), 4 * kSlotsPerBlock);
    std::vector<std::vector<float>> scores, values;
    for (const uint32_t rows : {1u, 30u}) {
      const auto q = random_floats(size_t{rows} * 32, 8);
      for (const Kernels* kernels : variants()) {
        std::vector<float> scratch(block_scratch_floats(rows, kDim));
        scores.emplace_back(rows * 32);
        kernels->attention.scores({q.data(),
                                   rows,
                                   {block.data(), block.data(), type, kDim},
                                   scores.back().data(),
                                   32,
                                   scratch.data()});
        values.emplace_back(rows * kDim);
        kernels->attention.weighted_sum({q.data(),
                                         32,
                                         rows,
                                         {block.data(), block.data(), type, kDim},
                                         0,
                                         32,
                                         values.back().data(),
                                         scratch.data()});
        const size_t first = scores.size() / variants().size() * variants().size();
        const size_t reference = first == scores.size() ? first - variants().size() : first;
        EXPECT_TRUE(same_bits(scores.back(), scores[reference])) << kernels->name;
        EXPECT_TRUE(same_bits(values.back(), values[reference])) << kernels->name;
      }
    }
  }
}

TEST(BlockAttention, SoftmaxIsTheReferencesBitsAndIgnoresUnusedSlots) {
  for (uint32_t slots = 1; slots <= 130; ++slots) {
    auto given = random_floats(160, slots, 30.0f);
    if (slots % 5 == 0) given[0] = -kInfinity;
    for (size_t i = slots; i < given.size(); ++i) given[i] = i % 2 ? kNan : 1e30f;
    const uint32_t padded = (slots + 31) / 32 * 32;
    std::vector<float> expected;
    float expected_max = 0.0f, expected_sum = 0.0f;
    for (const Kernels* kernels : variants()) {
      auto scores = given;
      float max = 0.0f, sum = 0.0f;
      kernels->attention.softmax(scores.data(), slots, &max, &sum);
      if (kernels == variants()[0]) {
        expected = scores;
        expected_max = max;
        expected_sum = sum;
      }
      EXPECT_TRUE(same_bits(scores, expected)) << kernels->name << " " << slots;
      EXPECT_EQ(max, expected_max);
      EXPECT_EQ(sum, expected_sum);
      EXPECT_TRUE(std::isfinite(sum));
      for (size_t i = slots; i < padded; ++i) EXPECT_EQ(scores[i], 0.0f);
    }
  }
}

}  // namespace
}  // namespace crossdock::kernels
