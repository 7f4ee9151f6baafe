// What batch invariance costs: the executor's f32 product, whose every output is one chain over k
// whatever the batch, beside one that is free to add in any order. Others' products, free as well,
// are measured by bench/torch_product.py on the same shapes.
#include <algorithm>
#include <string>
#include <vector>

#include "crossdock/kernels/kernels.h"
#include "report.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace crossdock::bench {
namespace {

using kernels::kPanelOutputs;

// SmolLM2-135M's largest matrices; as many of each as lie far outside the caches.
constexpr uint32_t kHidden = 576, kInner = 1536, kLayers = 24;

struct Shape {
  uint32_t depth = 0;
  uint32_t num_outputs = 0;
};
constexpr Shape kShapes[] = {{kHidden, 2 * kInner}, {kInner, kHidden}};

// One row times the panels [begin, end), four chains an output: what a product does that need not
// give the same bits for a row alone and in a batch.
using FreeProduct = void (*)(const float* x, uint32_t depth, const float* panels, uint32_t begin,
                             uint32_t end, float* y);

void free_product_scalar(const float* x, uint32_t depth, const float* panels, uint32_t begin,
                         uint32_t end, float* y) {
  for (uint32_t output = begin * kPanelOutputs; output < end * kPanelOutputs; ++output) {
    const float* weights =
        panels + size_t{output / kPanelOutputs} * depth * kPanelOutputs + output % kPanelOutputs;
    float sums[4] = {};
    for (uint32_t k = 0; k < depth; ++k) sums[k % 4] += x[k] * weights[size_t{k} * kPanelOutputs];
    y[output] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void free_product_avx2(const float* x, uint32_t depth,
                                                           const float* panels, uint32_t begin,
                                                           uint32_t end, float* y) {
  for (uint32_t half = 2 * begin; half < 2 * end; ++half) {
    const float* weights = panels + size_t{half / 2} * depth * kPanelOutputs + half % 2 * 8;
    __m256 sums[4] = {};
    for (uint32_t k = 0; k < depth; k += 4) {
#pragma GCC unroll 4
      for (uint32_t j = 0; j < 4; ++j) {
        sums[j] = _mm256_fmadd_ps(_mm256_loadu_ps(weights + size_t{k + j} * kPanelOutputs),
                                  _mm256_set1_ps(x[k + j]), sums[j]);
      }
    }
    _mm256_storeu_ps(y + size_t{half} * 8, _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]),
                                                         _mm256_add_ps(sums[2], sums[3])));
  }
}

__attribute__((target("avx512f"))) void free_product_avx512(const float* x, uint32_t depth,
                                                            const float* panels, uint32_t begin,
                                                            uint32_t end, float* y) {
  for (uint32_t panel = begin; panel < end; ++panel) {
    const float* weights = panels + size_t{panel} * depth * kPanelOutputs;
    __m512 sums[4] = {};
    for (uint32_t k = 0; k < depth; k += 4) {
#pragma GCC unroll 4
      for (uint32_t j = 0; j < 4; ++j) {
        sums[j] = _mm512_fmadd_ps(_mm512_loadu_ps(weights + size_t{k + j} * kPanelOutputs),
                                  _mm512_set1_ps(x[k + j]), sums[j]);
      }
    }
    _mm512_storeu_ps(
        y + size_t{panel} * kPanelOutputs,
        _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
  }
}
#endif

FreeProduct free_product(const std::string& kernels) {
#if defined(__x86_64__)
  if (kernels == "avx512") return free_product_avx512;
  if (kernels == "avx2") return free_product_avx2;
#endif
  return free_product_scalar;
}

// The matrices of all layers, and rows to multiply.
struct Operands {
  explicit Operands(uint32_t num_rows)
      : x(size_t{num_rows} * kInner, 0.25f), y(size_t{num_rows} * 2 * kInner) {
    for (const Shape& shape : kShapes) {
      panels.push_back(PageBuffer::allocate(kLayers * matrix_floats(shape) * 4).value());
      auto* floats = reinterpret_cast<float*>(panels.back().data());
      std::fill_n(floats, kLayers * matrix_floats(shape), 0.01f);
    }
  }
  static size_t matrix_floats(const Shape& shape) {
    return size_t{shape.depth} * shape.num_outputs;
  }
  const float* matrix(size_t shape, uint32_t layer) const {
    return reinterpret_cast<const float*>(panels[shape].data()) +
           layer * matrix_floats(kShapes[shape]);
  }

  std::vector<PageBuffer> panels;  // a shape
  std::vector<float> x;
  std::vector<float> y;
};

// Calls multiply(shape, weights, first unit, last unit, thread) for pieces of every matrix.
template <typename Multiply>
void for_matrices(ThreadPool& pool, const Operands& operands, const Multiply& multiply) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (size_t s = 0; s < std::size(kShapes); ++s) {
      const uint32_t units = kShapes[s].num_outputs / kPanelOutputs;
      pool.parallel_for(units, 4, [&](size_t begin, size_t end, uint32_t thread) {
        multiply(kShapes[s], operands.matrix(s, layer), static_cast<uint32_t>(begin),
                 static_cast<uint32_t>(end), thread);
      });
    }
  }
}

}  // namespace

void bench_products(const Report& report, const Options& options, ThreadPool& pool) {
  const kernels::Kernels& kernels = *kernels::select_kernels(options.kernels).value();
  for (const uint32_t num_rows : {1u, 16u, 512u}) {
    const std::string name = "product_f32_" + std::to_string(num_rows);
    const bool is_free = num_rows == 1 && report.wants(name + "_free");
    if (!report.wants(name) && !is_free) continue;
    Operands operands(num_rows);
    const size_t scratch_floats =
        std::max(kernels::product_scratch_floats(kHidden), kernels::product_scratch_floats(kInner));
    std::vector<std::vector<float>> scratch(pool.num_threads(), std::vector<float>(scratch_floats));
    Work work{.unit = "GFLOP/s"};
    for (const Shape& shape : kShapes) {
      work.gbytes += kLayers * static_cast<double>(Operands::matrix_floats(shape)) * 4 / 1e9;
    }
    work.gflop = work.gbytes / 2 * num_rows;
    work.amount = work.gflop;
    const auto ordered = [&](const Shape& shape, const float* weights, uint32_t begin, uint32_t end,
                             uint32_t thread) {
      const uint32_t tile_rows = kernels::product_tile_rows(shape.depth);
      for (uint32_t row = 0; row < num_rows; row += tile_rows) {
        const kernels::Product job{.x = operands.x.data() + size_t{row} * shape.depth,
                                   .x_stride = shape.depth,
                                   .num_rows = std::min(tile_rows, num_rows - row),
                                   .tile_rows = tile_rows,
                                   .depth = shape.depth,
                                   .panels = reinterpret_cast<const std::byte*>(weights),
                                   .num_outputs = shape.num_outputs,
                                   .y = operands.y.data() + size_t{row} * shape.num_outputs,
                                   .y_stride = shape.num_outputs};
        kernels.product(job, begin, end, scratch[thread].data());
      }
    };
    if (report.wants(name)) {
      for_matrices(pool, operands, ordered);
      report.measure(name, work, [&] { for_matrices(pool, operands, ordered); });
    }
    if (!is_free) continue;
    const FreeProduct multiply = free_product(options.kernels);
    report.measure(name + "_free", work, [&] {
      for_matrices(
          pool, operands,
          [&](const Shape& shape, const float* weights, uint32_t begin, uint32_t end, uint32_t) {
            multiply(operands.x.data(), shape.depth, weights, begin, end, operands.y.data());
          });
    });
  }
}

}  // namespace crossdock::bench
