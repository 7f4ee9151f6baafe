// Attention over one block with AVX-512. Bit-identical to attention_scalar.cpp: the same chains,
// sixteen of them a register.
#include "attention_chains.h"
#include "attention_latent.h"
#include "avx512_lanes.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

struct Lanes16 {
  using Floats = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kStreamingRows = Lanes8::kStreamingRows;
  struct Two {
    Floats first;
    Floats second;
  };

  static CROSSDOCK_INLINE Floats zero() { return _mm512_setzero_ps(); }
  static CROSSDOCK_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static CROSSDOCK_INLINE void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  static CROSSDOCK_INLINE Floats broadcast(const float* value) { return _mm512_set1_ps(*value); }
  static CROSSDOCK_INLINE Floats fma(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static CROSSDOCK_INLINE Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }

  struct F32 {
    using Type = float;
    using Narrow = Lanes8::F32;
    static CROSSDOCK_INLINE Floats one(const float* from) { return load(from); }
    template <int C>
    static CROSSDOCK_INLINE Two pair(const float* row, int index) {
      return {load(row + index * 2 * kWidth), load(row + index * 2 * kWidth + kWidth)};
    }
    template <int C>
    static CROSSDOCK_INLINE void in_order(Floats (&)[C]) {}
    template <int C>
    static CROSSDOCK_INLINE void as_loaded(Floats (&)[C]) {}
  };

  struct Bf16 {
    using Type = uint16_t;
    using Narrow = Lanes8::Bf16;
    static CROSSDOCK_INLINE Floats one(const uint16_t* from) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    // Even and odd columns are one instruction each.
    template <int C>
    static CROSSDOCK_INLINE Two pair(const uint16_t* row, int index) {
      const __m512i bits = _mm512_loadu_si512(row + index * 2 * kWidth);
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
              _mm512_castsi512_ps(_mm512_and_si512(bits, high))};
    }
    template <int C>
    static CROSSDOCK_INLINE void in_order(Floats (&columns)[C]) {
      const __m512i lower =
          _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      permute(columns, lower, _mm512_add_epi32(lower, _mm512_set1_epi32(8)));
    }
    template <int C>
    static CROSSDOCK_INLINE void as_loaded(Floats (&columns)[C]) {
      const __m512i even =
          _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      permute(columns, even, _mm512_add_epi32(even, _mm512_set1_epi32(1)));
    }
    template <int C>
    static CROSSDOCK_INLINE void permute(Floats (&columns)[C], __m512i first, __m512i second) {
#pragma GCC unroll 8
      for (int c = 0; c + 1 < C; c += 2) {
        const Floats low = _mm512_permutex2var_ps(columns[c], first, columns[c + 1]);
        columns[c + 1] = _mm512_permutex2var_ps(columns[c], second, columns[c + 1]);
        columns[c] = low;
      }
    }
  };

  // FP8 by way of bf16, as Lanes8 has it; `Format` takes sign-extended bytes.
  template <typename Format, typename NarrowElements>
  struct Fp8 : Bf16 {
    using Type = uint8_t;
    using Narrow = NarrowElements;
    static CROSSDOCK_INLINE Floats one(const uint8_t* from) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      const __m512i bits = Format::to_bf16(_mm512_cvtepi8_epi32(bytes));
      return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    }
    template <int C>
    static CROSSDOCK_INLINE Two pair(const uint8_t* row, int index) {
      const __m256i bytes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + index * 2 * kWidth));
      const __m512i bits = Format::to_bf16(_mm512_cvtepi8_epi16(bytes));
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
              _mm512_castsi512_ps(_mm512_and_si512(bits, high))};
    }
  };
  struct E4m3Format {
    static CROSSDOCK_INLINE __m512i to_bf16(__m512i extended) {
      return _mm512_and_si512(_mm512_slli_epi16(extended, 4),
                              _mm512_set1_epi16(static_cast<short>(0x87f0)));
    }
  };
  struct E5m2Format {
    static CROSSDOCK_INLINE __m512i to_bf16(__m512i extended) {
      return _mm512_and_si512(_mm512_slli_epi16(extended, 5),
                              _mm512_set1_epi16(static_cast<short>(0x8fe0)));
    }
  };
  using E4m3 = Fp8<E4m3Format, Lanes8::E4m3>;
  using E5m2 = Fp8<E5m2Format, Lanes8::E5m2>;
};

// 8 rows x 2 columns: 16 accumulators of the 32 registers hide the latency of the multipliers.
struct Avx512 : Lanes16 {
  static constexpr int kRows = 8;
  static constexpr int score_columns(int) { return 2; }
  static constexpr int value_columns(int rows) { return rows > 4 ? 2 : rows > 1 ? 4 : 8; }
  template <typename Tile>
  static CROSSDOCK_INLINE void for_rows(const Tile& tile, uint32_t num_rows) {
    for_groups<Tile, 8, 4, 3, 2, 1>(tile, 0, num_rows);
  }
  // The eight dimensions that sixteen lanes leave.
  template <typename Elements, int R>
  static CROSSDOCK_INLINE void last_values(const WeightedSum& job, uint32_t row, uint32_t dim) {
    if (dim == job.v.head_dim) return;
    value_tile<Lanes8, typename Elements::Narrow, R, 1>(job, row, dim);
  }
};

void softmax(float* scores, uint32_t num_slots, float* max, float* sum) {
  const uint32_t padded = (num_slots + kSlots - 1) / kSlots * kSlots;
  for (uint32_t slot = num_slots; slot < padded; ++slot) scores[slot] = -__builtin_inff();
  __m512 lanes = _mm512_set1_ps(-__builtin_inff());
  for (uint32_t slot = 0; slot < padded; slot += Lanes16::kWidth) {
    lanes = _mm512_max_ps(lanes, _mm512_loadu_ps(scores + slot));
  }
  float halves[Lanes16::kWidth];
  _mm512_storeu_ps(halves, lanes);
  *max = fold_max(_mm256_max_ps(Lanes8::load(halves), Lanes8::load(halves + Lanes8::kWidth)));
  const __m512 top = _mm512_set1_ps(*max);
  lanes = _mm512_setzero_ps();
  for (uint32_t slot = 0; slot < padded; slot += Lanes16::kWidth) {
    const __m512 value = exp_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + slot), top));
    _mm512_storeu_ps(scores + slot, value);
    lanes = _mm512_add_ps(lanes, value);
  }
  _mm512_storeu_ps(halves, lanes);
  *sum = fold_sum(_mm256_add_ps(Lanes8::load(halves), Lanes8::load(halves + Lanes8::kWidth)));
}

}  // namespace

const AttentionKernels kAttentionAvx512{scores<Avx512>, softmax, weighted_sum<Avx512>, widen_keys,
                                        widen_values};

}  // namespace crossdock::kernels
