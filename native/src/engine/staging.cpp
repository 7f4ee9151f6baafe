#include "crossdock/engine/staging.h"

#include <algorithm>

#include "crossdock/model/kv_convert.h"

namespace crossdock {
namespace {

size_t slot_bytes(KvLayout layout) {
  size_t largest = 0;
  for (const DType dtype : kAllDTypes) {
    layout.dtype = dtype;
    if (layout.validate().ok()) largest = std::max(largest, layout.stride_bytes());
  }
  return largest;
}

}  // namespace

size_t Staging::bytes(const KvLayout& layout) { return kSlots * slot_bytes(layout); }

Staging::Staging(const KvLayout& layout, std::span<std::byte> segment)
    : layout_(layout), segment_(segment) {
  const size_t size = slot_bytes(layout);
  for (uint32_t slot = kSlots; slot > 0; --slot) free_.push_back(segment.size() - slot * size);
}

std::optional<uint64_t> Staging::convert(uint64_t source, const KvLayout& target) {
  if (free_.empty()) return std::nullopt;
  const uint64_t offset = free_.back();
  free_.pop_back();
  convert_block(layout_, target, segment_.data() + source, segment_.data() + offset);
  return offset;
}

}  // namespace crossdock
