#include "crossdock/model/kv_convert.h"

#include <cassert>
#include <cstdint>

#include "crossdock/kernels/math.h"

namespace crossdock {
namespace {

float load(const std::byte* from, DType dtype, size_t index) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(from)[index];
  return kernels::widen_bf16(reinterpret_cast<const uint16_t*>(from)[index]);
}

void store(std::byte* to, DType dtype, size_t index, float value) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(to)[index] = value;
  } else {
    reinterpret_cast<uint16_t*>(to)[index] = kernels::round_bf16(value);
  }
}

}  // namespace

void convert_block(const KvLayout& from, const KvLayout& to, const std::byte* source,
                   std::byte* target) {
  assert(to.converts_from(from));
  const size_t count = from.block_bytes() / size_bytes(from.dtype);
  for (size_t i = 0; i < count; ++i) store(target, to.dtype, i, load(source, from.dtype, i));
}

}  // namespace crossdock
