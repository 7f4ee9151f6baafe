// Attention of one thread, over a cache that it streams from memory and over one run that stays in
// the processor's: what the arithmetic allows, what memory allows, and what widening costs. Prints
// one JSON line a case, the median of many short runs.
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "crossdock/kernels/attention.h"
#include "crossdock/kernels/kernels.h"
#include "crossdock/sys/mapped_file.h"

namespace crossdock::kernels {
namespace {

struct Shape {
  const char* name;
  ElementType type;
  uint32_t key_dim;
  uint32_t value_dim;
  bool latent;
  uint32_t rows;  // query heads of one token
};

constexpr Shape kShapes[] = {
    {"gqa3_f32", ElementType::kF32, 64, 64, false, 3},
    {"gqa3_bf16", ElementType::kBf16, 64, 64, false, 3},
    {"gqa3_e4m3", ElementType::kFp8E4m3, 64, 64, false, 3},
    {"gqa3_e5m2", ElementType::kFp8E5m2, 64, 64, false, 3},
    {"gqa1_bf16", ElementType::kBf16, 64, 64, false, 1},
    {"gqa1_e4m3", ElementType::kFp8E4m3, 64, 64, false, 1},
    {"gqa8_bf16", ElementType::kBf16, 128, 128, false, 8},
    {"gqa8_e4m3", ElementType::kFp8E4m3, 128, 128, false, 8},
    {"tile48_bf16", ElementType::kBf16, 64, 64, false, 48},
    {"tile48_e4m3", ElementType::kFp8E4m3, 64, 64, false, 48},
    {"mla16_bf16", ElementType::kBf16, 576, 512, true, 16},
    {"mla16_fp8", ElementType::kFp8E4m3, 576, 512, true, 16},
    {"mla48_bf16", ElementType::kBf16, 576, 512, true, 48},
    {"mla48_fp8", ElementType::kFp8E4m3, 576, 512, true, 48},
};

size_t part_bytes(const Shape& shape, uint32_t dim) {
  return kSlotsPerBlock * (dim * size_bytes(shape.type) + (is_fp8(shape.type) ? 4 : 0));
}

size_t block_bytes(const Shape& shape) {
  const LatentForm form{shape.type, shape.value_dim, shape.key_dim - shape.value_dim};
  return shape.latent ? kSlotsPerBlock * form.row_bytes()
                      : part_bytes(shape, shape.key_dim) + part_bytes(shape, shape.value_dim);
}

// A sequence of some runs, its blocks scattered over the slab.
struct Sequence {
  Sequence(const Shape& shape_, uint32_t num_runs_) : shape(shape_), num_runs(num_runs_) {
    const uint32_t num_blocks = num_runs * kRunBlocks;
    auto memory = PageBuffer::allocate(num_blocks * block_bytes(shape));
    assert(memory.ok());
    slab = std::move(memory).value();
    std::memset(slab.data(), 0x3c, slab.size());
    for (uint32_t i = 0; i < num_blocks; ++i) table.push_back((i * 37 + 11) % num_blocks);
    q.assign(size_t{shape.rows} * shape.key_dim, 0.5f);
    state.resize(attention_state_floats(shape.rows, shape.value_dim));
    scratch.resize(attention_scratch_floats(shape.rows, shape.key_dim, shape.value_dim));
  }

  void run(const Kernels& kernels, uint32_t index) {
    const KvHead kv{slab.data(),
                    block_bytes(shape),
                    0,
                    part_bytes(shape, shape.key_dim),
                    shape.type,
                    shape.key_dim,
                    shape.value_dim,
                    shape.latent};
    const QueryTile tile{q.data(),
                         q.size(),
                         1,
                         shape.rows,
                         num_runs * kRunSlots - 1,
                         table.data(),
                         1.0f / std::sqrt(static_cast<float>(shape.key_dim))};
    attend(kernels.attention, tile, kv, {index, index + 1},
           attention_state(state.data(), shape.rows, shape.value_dim), scratch.data());
  }

  const Shape shape;
  const uint32_t num_runs;
  PageBuffer slab;
  std::vector<uint32_t> table;
  std::vector<float> q;
  std::vector<float> state;
  std::vector<float> scratch;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one run of 512 slots; a sequence of one run stays in the cache.
double median_run_s(Sequence& sequence, const Kernels& kernels, int repeats) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = now_s();
    sequence.run(kernels, static_cast<uint32_t>(i) % sequence.num_runs);
    seconds.push_back(now_s() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats) / 2];
}

void measure(const Kernels& kernels, const Shape& shape, const char* place, uint32_t runs) {
  Sequence sequence(shape, runs);
  const double seconds = median_run_s(sequence, kernels, std::max(200, static_cast<int>(runs)));
  const double gflop = 2e-9 * kRunSlots * shape.rows * (shape.key_dim + shape.value_dim);
  const double gbytes = 1e-9 * kRunBlocks * static_cast<double>(block_bytes(shape));
  std::printf(
      "{\"case\": \"%s\", \"kernels\": \"%s\", \"from\": \"%s\", \"us_per_run\": %.2f, "
      "\"gflop_per_s\": %.1f, \"gbyte_per_s\": %.2f}\n",
      shape.name, kernels.name, place, seconds * 1e6, gflop / seconds, gbytes / seconds);
}

}  // namespace
}  // namespace crossdock::kernels

// Arguments: the variant ("auto"), then beginnings of the cases' names (all).
int main(int argc, char** argv) {
  using namespace crossdock::kernels;
  auto kernels = select_kernels(argc > 1 ? argv[1] : "auto");
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", kernels.status().to_string().c_str());
    return 2;
  }
  // More than any processor's cache.
  constexpr double kStreamedBytes = 192e6;
  for (const Shape& shape : kShapes) {
    const bool wanted = argc < 3 || std::any_of(
                                        argv + 2, argv + argc,
                                        [&](const char* prefix) {
                                          return std::string(shape.name).rfind(prefix, 0) == 0;
                                        });
    if (!wanted) continue;
    const double run_bytes = kRunBlocks * static_cast<double>(block_bytes(shape));
    measure(*kernels.value(), shape, "cache", 1);
    measure(*kernels.value(), shape, "memory", static_cast<uint32_t>(kStreamedBytes / run_bytes));
  }
  return 0;
}
