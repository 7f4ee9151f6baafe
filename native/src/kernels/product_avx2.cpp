// Products with AVX2, FMA and F16C. Bit-identical to product_scalar.cpp: the same chains, eight of
// them a register, two registers a panel.
#include "avx2_lanes.h"
#include "panel_layout.h"
#include "product_loops.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kWidth = 8;

struct Avx2 {
  struct Floats {
    __m256 first;
    __m256 second;
  };
  struct Ints {
    __m256i first;
    __m256i second;
  };

  // 12 accumulators of the 16 registers.
  static constexpr int kRows = 6;
  // The product, before it is added, takes a register, as do the broadcast pair and the weights.
  static constexpr int kIntegerRows = 4;
  static constexpr int panels_together(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
  static constexpr int integer_panels_together(int rows) { return rows == 1 ? 2 : 1; }

  static CROSSDOCK_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static CROSSDOCK_INLINE Floats load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + kWidth)};
  }
  static CROSSDOCK_INLINE void store(float* to, Floats value) {
    _mm256_storeu_ps(to, value.first);
    _mm256_storeu_ps(to + kWidth, value.second);
  }
  static CROSSDOCK_INLINE Floats broadcast(const float* value) {
    const __m256 all = _mm256_broadcast_ss(value);
    return {all, all};
  }
  static CROSSDOCK_INLINE Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.first, b.first, c.first),
            _mm256_fmadd_ps(a.second, b.second, c.second)};
  }
  static CROSSDOCK_INLINE Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.first, b.first), _mm256_add_ps(a.second, b.second)};
  }
  static CROSSDOCK_INLINE Floats multiply(Floats a, Floats b) {
    return {_mm256_mul_ps(a.first, b.first), _mm256_mul_ps(a.second, b.second)};
  }
  static CROSSDOCK_INLINE Floats silu(Floats x) { return {silu_ps(x.first), silu_ps(x.second)}; }
  static CROSSDOCK_INLINE Floats load_f16(const uint16_t* from) {
    return widen_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static CROSSDOCK_INLINE Floats widen_f16(__m256i values) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(values)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(values, 1))};
  }

  struct F32 {
    using Type = float;
    static constexpr bool kIsSlow = false;
    static CROSSDOCK_INLINE Floats widen(const float* from) { return load(from); }
    static CROSSDOCK_INLINE Floats load_sums(const float* from) { return load(from); }
    static CROSSDOCK_INLINE void store_sums(float* to, Floats sums) { store(to, sums); }
  };
  // Sixteen of them come apart most cheaply as the even and the odd ones, one instruction each, so
  // that is the order in which accumulators hold them. A chain is the same wherever its lane lies.
  struct Bf16 {
    using Type = uint16_t;
    static constexpr bool kIsSlow = false;
    static CROSSDOCK_INLINE Floats widen(const uint16_t* from) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
      return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(bits, high))};
    }
    static CROSSDOCK_INLINE Floats load_sums(const float* from) {
      const Floats sums = load(from);
      const __m256 even = _mm256_shuffle_ps(sums.first, sums.second, 0x88);
      const __m256 odd = _mm256_shuffle_ps(sums.first, sums.second, 0xdd);
      constexpr int kSwapMiddle = 0xd8;
      return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), kSwapMiddle)),
              _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), kSwapMiddle))};
    }
    static CROSSDOCK_INLINE void store_sums(float* to, Floats sums) {
      const __m256 low = _mm256_unpacklo_ps(sums.first, sums.second);
      const __m256 high = _mm256_unpackhi_ps(sums.first, sums.second);
      store(to, {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)});
    }
  };
  // An e4m3's bits, moved up in an f16, are value / 256: the sign goes to bit 15, the copy of it
  // that the widening left in bit 14 goes away.
  struct Fp8 {
    using Type = uint8_t;
    static constexpr bool kIsSlow = true;
    static CROSSDOCK_INLINE Floats widen(const uint8_t* from) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
      return widen_f16(_mm256_and_si256(moved, _mm256_set1_epi16(static_cast<short>(0xbfff))));
    }
  };

  static CROSSDOCK_INLINE Ints zero_ints() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }
  static CROSSDOCK_INLINE Floats to_floats(Ints sums) {
    return {_mm256_cvtepi32_ps(sums.first), _mm256_cvtepi32_ps(sums.second)};
  }
  // In assembly, because compilers order the products of a group output by output, and then keep
  // all its broadcast pairs, on the stack.
  static CROSSDOCK_INLINE void add_products(Ints& sums, Ints pairs, const int16_t* pair) {
    struct Pair16 {
      int16_t values[2];
    };
    __m256i product, second_product;
    asm volatile(
        "vpbroadcastd %4, %1\n\t"
        "vpmaddwd %1, %5, %0\n\t"
        "vpmaddwd %1, %6, %1\n\t"
        "vpaddd %0, %2, %2\n\t"
        "vpaddd %1, %3, %3"
        : "=&x"(product), "=&x"(second_product), "+x"(sums.first), "+x"(sums.second)
        : "m"(*reinterpret_cast<const Pair16*>(pair)), "x"(pairs.first), "x"(pairs.second));
  }
  static CROSSDOCK_INLINE __m256i load_half(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  struct Int8 {
    static constexpr size_t kGroupBytes = kInt8Group.bytes;
    static constexpr size_t kIntegers = kInt8Group.integers;
    static constexpr bool kHasMinimum = false;
    static constexpr bool kIsSlow = false;
    static CROSSDOCK_INLINE Ints widen(const std::byte* from, int part) {
      return {widen_half(from, part), widen_half(from + 32, part)};
    }
    static CROSSDOCK_INLINE __m256i widen_half(const std::byte* from, int part) {
      const __m256i bytes = load_half(from);
      return _mm256_srai_epi16(part == 0 ? _mm256_slli_epi16(bytes, 8) : bytes, 8);
    }
  };
  struct Int4 {
    static constexpr size_t kGroupBytes = kInt4Group.bytes;
    static constexpr size_t kIntegers = kInt4Group.integers;
    static constexpr bool kHasMinimum = true;
    static constexpr bool kIsSlow = true;
    static CROSSDOCK_INLINE Ints widen(const std::byte* from, int part) {
      return {widen_half(from, part), widen_half(from + 32, part)};
    }
    static CROSSDOCK_INLINE __m256i widen_half(const std::byte* from, int part) {
      const __m256i nibbles = _mm256_srli_epi16(load_half(from), 4 * part);
      return part == 3 ? nibbles : _mm256_and_si256(nibbles, _mm256_set1_epi16(15));
    }
  };
};

}  // namespace

void product_avx2(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch) {
  product_with<Avx2>(job, unit_begin, unit_end, scratch);
}

}  // namespace crossdock::kernels
