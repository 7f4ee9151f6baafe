// Products of rows with packed matrices on all threads.
//
// Several products run in one fork-join. How they are cut into pieces never changes a bit: each
// output is reduced in one fixed order (kernels/product.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/kernels/kernels.h"
#include "crossdock/sys/thread_pool.h"
#include "decoder_weights.h"
#include "rows.h"

namespace crossdock {

struct MatrixProduct {
  const PackedMatrix* matrix = nullptr;
  Rows x;
  Rows y;  // as many rows
  kernels::Epilogue epilogue = kernels::Epilogue::kStore;
  uint32_t unit_begin = 0;  // panels, or pairs of them with SwiGLU
  uint32_t unit_end = UINT32_MAX;
};

// One step at a time.
class Products {
 public:
  // depth_max: of every matrix to come.
  Products(const kernels::Kernels& kernels, ThreadPool& pool, uint32_t depth_max);

  // No product may read what another writes. Consecutive products of the same rows are quantised
  // once.
  void run(std::span<const MatrixProduct> products);
  void run(const MatrixProduct& product) { run({&product, 1}); }

 private:
  // How one product is cut: tiles of rows times pieces of units.
  struct Cut {
    kernels::Product job;  // of all rows and units
    uint32_t unit_begin = 0;
    uint32_t unit_end = 0;
    uint32_t num_pieces = 0;  // a tile of rows
    size_t end = 0;           // of the tasks of this product and those before it

    uint32_t piece_begin(uint32_t piece) const {
      return unit_begin +
             static_cast<uint32_t>(uint64_t{unit_end - unit_begin} * piece / num_pieces);
    }
  };

  void quantise(std::span<const MatrixProduct> products);
  size_t cut(const MatrixProduct& product, const kernels::QuantisedRows& quantised,
             size_t first_task);
  void run_task(size_t task, uint32_t thread);

  const kernels::Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<std::vector<float>> thread_scratch_;
  std::vector<Cut> cuts_;
  std::vector<kernels::QuantisedRows> quantised_;  // a product
  std::vector<int16_t> values_;
  std::vector<float> scales_;
  std::vector<float> sums_;
};

}  // namespace crossdock
