// Makes a block of one KV dtype from a block of another.
#pragma once

#include <cstddef>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock {

// `to` must convert from `from`. Every element is decoded and encoded anew with the target's own
// scales; bytes between block_bytes() and stride_bytes() are left alone.
void convert_block(const KvLayout& from, const KvLayout& to, const std::byte* source,
                   std::byte* target);

}  // namespace crossdock
