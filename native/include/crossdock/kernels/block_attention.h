// Attention of some query rows over one block of KV, the innermost step of attention.h.
//
// Reductions are single chains of fma in a fixed order with vector lanes across slots (scores) or
// across dims (values), from the widened elements of the pool's type. The scales of FP8 are applied
// to a whole chain: score = chain(q, k8) * k_scale[slot]; p * v_scale[slot] before the chain over
// slots.
//
// FP8 enters a chain as what its bits are where an f32 has its own, which takes two instructions:
// an e4m3 as its value by 2^-120, an e5m2 as its value by 2^-112. Queries come times kFp8Lift, and
// p takes kFp8Lift along with its scale, so that the chains stay clear of subnormals; what then is
// missing, the rest, goes into the scale of K, and the values are in units of one over the rest.
// Powers of two move no bit of a result. (The codes of NaN and infinity, which kv_codec.h never
// writes, count on as if they were numbers.)
//
// Results are the same bits in every variant, but for the sign and the payload of a NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossdock::kernels {

// Of K and V in a block.
enum class ElementType : uint8_t { kF32 = 0, kBf16 = 1, kFp8E4m3 = 2, kFp8E5m2 = 3 };

constexpr size_t size_bytes(ElementType type) {
  return type == ElementType::kF32 ? 4 : type == ElementType::kBf16 ? 2 : 1;
}
constexpr bool is_fp8(ElementType type) { return size_bytes(type) == 1; }

inline constexpr float kFp8Lift = 0x1p90f;
inline constexpr float kE4m3Rest = 0x1p30f;  // 120 - 90
inline constexpr float kE5m2Rest = 0x1p22f;
constexpr float fp8_rest(ElementType type) {
  return type == ElementType::kFp8E4m3 ? kE4m3Rest : kE5m2Rest;
}

// A row of latent attention (MLA), as DeepSeek-V2 describes it: what one token caches in one layer.
// Every query head sees [latent | rope] as its key and the latent as its value. kFp8E4m3 is
// fp8_ds_mla: the latent in e4m3, one f32 scale per 128 of it, the rest in bf16.
inline constexpr uint32_t kLatentGroup = 128;

struct LatentForm {
  ElementType type = ElementType::kF32;
  uint32_t latent_dim = 0;  // a multiple of 8, of 128 for FP8
  uint32_t rope_dim = 0;    // a multiple of 8

  ElementType rope_type() const { return is_fp8(type) ? ElementType::kBf16 : type; }
  uint32_t num_scales() const { return is_fp8(type) ? latent_dim / kLatentGroup : 0; }
  size_t scales_offset() const { return latent_dim * size_bytes(type); }
  size_t rope_offset() const { return scales_offset() + num_scales() * sizeof(float); }
  size_t row_bytes() const { return rope_offset() + rope_dim * size_bytes(rope_type()); }
};

// The 32 rows of a block.
struct LatentRows {
  const std::byte* bytes = nullptr;
  size_t row_bytes = 0;
  size_t scales_offset = 0;  // within a row
  size_t rope_offset = 0;
  ElementType type = ElementType::kF32;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
};

// One head's K or V of one block, for some query rows; for FP8 the scales of the slots follow the
// elements. `next` is what the caller reads after it, to be fetched early (it is never
// dereferenced; without a next block, the block itself).
struct KvBlock {
  const std::byte* bytes = nullptr;
  const std::byte* next = nullptr;
  ElementType type = ElementType::kF32;
  uint32_t head_dim = 0;  // a multiple of 8
};

// Floats of scratch that `scores` and `weighted_sum` need: the block widened, and for each row the
// exponentials times the scales.
inline size_t block_scratch_floats(uint32_t num_rows, uint32_t head_dim) {
  return 32 * (size_t{num_rows} + head_dim);
}

// scores[row][slot] = chain over dim of q[row][dim] * k[dim][slot], for the 32 slots of a block;
// for FP8 q is times kFp8Lift.
struct Scores {
  const float* q = nullptr;  // [row][head_dim]
  uint32_t num_rows = 0;
  KvBlock k;
  float* scores = nullptr;
  size_t scores_stride = 0;
  float* scratch = nullptr;
};

// values[row][dim] continues its chain over slots of p[row][slot] * v[slot][dim], from slot_begin
// to slot_end of the block; for FP8 the values are in units of 1 / fp8_rest(type).
struct WeightedSum {
  const float* p = nullptr;  // [row][p_stride], indexed by slot
  size_t p_stride = 0;
  uint32_t num_rows = 0;
  KvBlock v;
  uint32_t slot_begin = 0;
  uint32_t slot_end = 0;
  float* values = nullptr;  // [row][head_dim]
  float* scratch = nullptr;
};

struct AttentionKernels {
  void (*scores)(const Scores& scores);
  // Over the first num_slots (at least one) scores: replaces them by exp(score - max), the rest up
  // to a multiple of 32 by zero, and gives max and sum. Lane i of 16 sums slots i, i+16, ...; the
  // lanes are then folded in halves. A score past num_slots is never used, whatever it is.
  void (*softmax)(float* scores, uint32_t num_slots, float* max, float* sum);
  void (*weighted_sum)(const WeightedSum& sum);
  // The rows as f32, the elements of FP8 times their scale: transposed into
  // keys[latent | rope][slot], or their latents as values[slot][latent].
  void (*widen_keys)(const LatentRows& rows, float* keys);
  void (*widen_values)(const LatentRows& rows, float* values);
};

}  // namespace crossdock::kernels
