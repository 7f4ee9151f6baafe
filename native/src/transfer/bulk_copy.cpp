#include "bulk_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossdock {
namespace {

#if defined(__x86_64__)
constexpr size_t kStepBytes = 128;

// `to` is aligned to 32 bytes, `bytes` a multiple of kStepBytes.
__attribute__((target("avx2"))) void stream(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kStepBytes) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  // Streaming stores are weakly ordered; whoever reads the message that follows must see them.
  _mm_sfence();
}
#endif

}  // namespace

void copy_bulk(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(to) % sizeof(__m256i);
    const size_t head = std::min(bytes, misaligned == 0 ? 0 : sizeof(__m256i) - misaligned);
    std::memcpy(to, from, head);
    const size_t body = (bytes - head) / kStepBytes * kStepBytes;
    stream(to + head, from + head, body);
    const size_t tail = head + body;
    std::memcpy(to + tail, from + tail, bytes - tail);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace crossdock
