// Eight lanes of AVX2, FMA and F16C, and how the element types of K and V come into them.
//
// Included only by files compiled with those flags or wider ones. Everything here is in an
// anonymous namespace, so that no copy of it is shared with a file of other flags.
#pragma once

#include <immintrin.h>

#include <cstdint>

#ifndef CROSSDOCK_INLINE
#define CROSSDOCK_INLINE inline __attribute__((always_inline))
#endif

namespace crossdock::kernels {
namespace {

// The instructions. F32, Bf16, E4m3 and E5m2 say how elements of that type fill registers: one of
// them, or two at `index` of a tile of C; and how the accumulators of a tile come in order.
struct Lanes8 {
  using Floats = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kStreamingRows = 3;  // that many or fewer take K and V from memory
  // Two registers of neighbouring columns. Some types come apart most cheaply in another order than
  // that of the columns; accumulators then hold that order until they are stored. A lane's chain is
  // the same wherever the lane lies.
  struct Two {
    Floats first;
    Floats second;
  };

  static CROSSDOCK_INLINE Floats zero() { return _mm256_setzero_ps(); }
  static CROSSDOCK_INLINE Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static CROSSDOCK_INLINE void store(float* to, Floats value) { _mm256_storeu_ps(to, value); }
  static CROSSDOCK_INLINE Floats broadcast(const float* value) {
    return _mm256_broadcast_ss(value);
  }
  static CROSSDOCK_INLINE Floats fma(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static CROSSDOCK_INLINE Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }

  // Registers that hold the even and the odd columns of sixteen, and back.
  static CROSSDOCK_INLINE Two interleave(Two pair) {
    const __m256 low = _mm256_unpacklo_ps(pair.first, pair.second);
    const __m256 high = _mm256_unpackhi_ps(pair.first, pair.second);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
  }
  static CROSSDOCK_INLINE Two part(Two pair) {
    const __m256 even = _mm256_shuffle_ps(pair.first, pair.second, 0x88);
    const __m256 odd = _mm256_shuffle_ps(pair.first, pair.second, 0xdd);
    constexpr int kSwapMiddle = 0xd8;
    return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), kSwapMiddle)),
            _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), kSwapMiddle))};
  }

  // Four rows of four columns in each half of the registers.
  struct Fours {
    Floats of[4];
  };
  static CROSSDOCK_INLINE Fours transpose(Floats a, Floats b, Floats c, Floats d) {
    const __m256d low_ab = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
    const __m256d low_cd = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
    const __m256d high_ab = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
    const __m256d high_cd = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
    return {{_mm256_castpd_ps(_mm256_unpacklo_pd(low_ab, low_cd)),
             _mm256_castpd_ps(_mm256_unpackhi_pd(low_ab, low_cd)),
             _mm256_castpd_ps(_mm256_unpacklo_pd(high_ab, high_cd)),
             _mm256_castpd_ps(_mm256_unpackhi_pd(high_ab, high_cd))}};
  }

  struct F32 {
    using Type = float;
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
    static CROSSDOCK_INLINE Floats one(const uint16_t* from) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    // Even and odd columns are one instruction each.
    template <int C>
    static CROSSDOCK_INLINE Two pair(const uint16_t* row, int index) {
      const __m256i bits =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + index * 2 * kWidth));
      const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
      return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(bits, high))};
    }
    template <int C>
    static CROSSDOCK_INLINE void in_order(Floats (&columns)[C]) {
#pragma GCC unroll 8
      for (int c = 0; c + 1 < C; c += 2) {
        const Two two = interleave({columns[c], columns[c + 1]});
        columns[c] = two.first;
        columns[c + 1] = two.second;
      }
    }
    template <int C>
    static CROSSDOCK_INLINE void as_loaded(Floats (&columns)[C]) {
#pragma GCC unroll 8
      for (int c = 0; c + 1 < C; c += 2) {
        const Two two = part({columns[c], columns[c + 1]});
        columns[c] = two.first;
        columns[c + 1] = two.second;
      }
    }
  };

  // FP8 by way of bf16, whose bits `Format` makes of those in the high bytes of 16-bit lanes.
  template <typename Format>
  struct Fp8 {
    using Type = uint8_t;
    static CROSSDOCK_INLINE Two widen(__m256i high_bytes) {
      const __m256i bits = Format::to_bf16(high_bytes);
      const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
      return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(bits, high))};
    }
    static CROSSDOCK_INLINE Floats one(const uint8_t* from) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
      const __m256i lanes = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 24);
      const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
      return _mm256_castsi256_ps(_mm256_and_si256(Format::to_bf16(lanes), high));
    }
    // Of each four columns the first and the third are a pair, the others the next: no shuffle.
    template <int C>
    static CROSSDOCK_INLINE Two pair(const uint8_t* row, int index) {
      if constexpr (C % 4 == 0) {
        const __m256i bytes =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + index / 2 * 4 * kWidth));
        return widen(index % 2 == 0 ? _mm256_slli_epi16(bytes, 8) : bytes);
      }
      const __m128i bytes =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + index * 2 * kWidth));
      return widen(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
    }
    template <int C>
    static CROSSDOCK_INLINE void in_order(Floats (&columns)[C]) {
      if constexpr (C % 4 != 0) return Bf16::in_order(columns);
#pragma GCC unroll 8
      for (int c = 0; c + 3 < C; c += 4) {
        const Fours fours = transpose(columns[c], columns[c + 2], columns[c + 1], columns[c + 3]);
        columns[c] = _mm256_permute2f128_ps(fours.of[0], fours.of[1], 0x20);
        columns[c + 1] = _mm256_permute2f128_ps(fours.of[2], fours.of[3], 0x20);
        columns[c + 2] = _mm256_permute2f128_ps(fours.of[0], fours.of[1], 0x31);
        columns[c + 3] = _mm256_permute2f128_ps(fours.of[2], fours.of[3], 0x31);
      }
    }
    template <int C>
    static CROSSDOCK_INLINE void as_loaded(Floats (&columns)[C]) {
      if constexpr (C % 4 != 0) return Bf16::as_loaded(columns);
#pragma GCC unroll 8
      for (int c = 0; c + 3 < C; c += 4) {
        const Fours fours = transpose(_mm256_permute2f128_ps(columns[c], columns[c + 2], 0x20),
                                      _mm256_permute2f128_ps(columns[c], columns[c + 2], 0x31),
                                      _mm256_permute2f128_ps(columns[c + 1], columns[c + 3], 0x20),
                                      _mm256_permute2f128_ps(columns[c + 1], columns[c + 3], 0x31));
        columns[c] = fours.of[0];
        columns[c + 1] = fours.of[2];
        columns[c + 2] = fours.of[1];
        columns[c + 3] = fours.of[3];
      }
    }
  };
  // The bits of FP8 where an f32 has its own: an e4m3 is its value by 2^-120, an e5m2 by 2^-112.
  struct E4m3Format {
    static CROSSDOCK_INLINE __m256i to_bf16(__m256i high_bytes) {
      return _mm256_and_si256(_mm256_srai_epi16(high_bytes, 4),
                              _mm256_set1_epi16(static_cast<short>(0x87f0)));
    }
  };
  struct E5m2Format {
    static CROSSDOCK_INLINE __m256i to_bf16(__m256i high_bytes) {
      return _mm256_and_si256(_mm256_srai_epi16(high_bytes, 3),
                              _mm256_set1_epi16(static_cast<short>(0x8fe0)));
    }
  };
  using E4m3 = Fp8<E4m3Format>;
  using E5m2 = Fp8<E5m2Format>;
};

}  // namespace
}  // namespace crossdock::kernels
