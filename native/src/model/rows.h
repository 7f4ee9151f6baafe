// Rows of floats in memory that outlives a step, and small loops over them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossdock/sys/thread_pool.h"

namespace crossdock {

// Memory of a step grows to the largest batch seen and no further.
template <typename T>
void grow(std::vector<T>& memory, size_t size) {
  if (memory.size() < size) memory.resize(size);
}

// `count` rows, `stride` floats apart.
struct Rows {
  float* data = nullptr;
  size_t stride = 0;
  uint32_t count = 0;

  float* operator[](size_t row) const { return data + row * stride; }
};

// Small loops over rows: few rows are not worth waking anyone for.
template <typename Body>
void for_rows(ThreadPool& pool, size_t num_rows, const Body& body) {
  const size_t grain = std::max<size_t>(8, num_rows / (4 * pool.num_threads()));
  pool.parallel_for(num_rows, grain, [&](size_t begin, size_t end, uint32_t) {
    for (size_t row = begin; row < end; ++row) body(static_cast<uint32_t>(row));
  });
}

}  // namespace crossdock
