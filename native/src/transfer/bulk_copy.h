// Copies that pass by the cache.
#pragma once

#include <cstddef>

namespace crossdock {

// As memcpy, for parts of something much larger than a core's share of the cache: the target's
// lines are written without being read first, and nothing else is evicted. Ordered before every
// later store of this thread.
void copy_bulk(std::byte* to, const std::byte* from, size_t bytes);

// From this size of a whole operation on, copy_bulk is the faster one: a long handoff goes in
// operations of a chunk or of some layers, whose bytes are as cold as those of one large operation.
// Two AVX2 cores with 32 MiB of last-level cache: 4 MiB in the cache 34 GB/s by memcpy, 27
// streamed; 16 MiB 8 against 16; 256 MiB 8.6 against 13.
inline constexpr size_t kBulkBytesMin = 2u << 20;

}  // namespace crossdock
