#include "products.h"

#include <algorithm>
#include <cassert>

namespace crossdock {

using kernels::Product;
using kernels::QuantisedRows;

Products::Products(const kernels::Kernels& kernels, ThreadPool& pool, uint32_t depth_max)
    : kernels_(kernels), pool_(pool) {
  size_t size = 0;
  // A shallower matrix has taller tiles.
  for (uint32_t depth = 1; depth < depth_max; depth *= 2) {
    size = std::max(size, kernels::product_scratch_floats(depth));
  }
  size = std::max(size, kernels::product_scratch_floats(depth_max));
  thread_scratch_.assign(pool.num_threads(), std::vector<float>(size));
}

void Products::run(std::span<const MatrixProduct> products) {
  quantise(products);
  cuts_.clear();
  size_t num_tasks = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    num_tasks = cut(products[i], quantised_[i], num_tasks);
  }
  pool_.parallel_for(num_tasks, 1, [&](size_t begin, size_t end, uint32_t thread) {
    for (size_t task = begin; task < end; ++task) run_task(task, thread);
  });
}

void Products::quantise(std::span<const MatrixProduct> products) {
  quantised_.assign(products.size(), {});
  size_t num_values = 0, num_rows = 0, num_sums = 0;
  // Offsets first: the memory may move while it grows.
  const auto same_rows = [&](size_t i) {
    return i > 0 && quantised_[i - 1].groups > 0 && products[i].x.data == products[i - 1].x.data &&
           products[i].matrix->depth == products[i - 1].matrix->depth &&
           products[i].x.count == products[i - 1].x.count;
  };
  for (size_t i = 0; i < products.size(); ++i) {
    const PackedMatrix& matrix = *products[i].matrix;
    if (!kernels::is_integer(matrix.format)) continue;
    quantised_[i].groups = kernels::num_groups(matrix.depth);
    if (same_rows(i)) continue;
    num_values += size_t{products[i].x.count} * quantised_[i].groups * kernels::kGroup;
    num_sums += size_t{products[i].x.count} * quantised_[i].groups;
    num_rows += products[i].x.count;
  }
  grow(values_, num_values);
  grow(sums_, num_sums);
  grow(scales_, num_rows);
  num_values = num_sums = num_rows = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    QuantisedRows& to = quantised_[i];
    if (to.groups == 0) continue;
    if (same_rows(i)) {
      to = quantised_[i - 1];
      continue;
    }
    const Rows& x = products[i].x;
    to.values = values_.data() + num_values;
    to.sums = sums_.data() + num_sums;
    to.scales = scales_.data() + num_rows;
    num_values += size_t{x.count} * to.groups * kernels::kGroup;
    num_sums += size_t{x.count} * to.groups;
    num_rows += x.count;
    for_rows(pool_, x.count, [&](uint32_t row) {
      kernels::quantise_row(x[row], products[i].matrix->depth, row, to);
    });
  }
}

size_t Products::cut(const MatrixProduct& product, const QuantisedRows& quantised,
                     size_t first_task) {
  const PackedMatrix& matrix = *product.matrix;
  assert(product.x.count == product.y.count);
  Cut cut;
  cut.job = {.x = product.x.data,
             .x_stride = product.x.stride,
             .quantised = quantised,
             .num_rows = product.x.count,
             .tile_rows = kernels::product_tile_rows(matrix.depth),
             .depth = matrix.depth,
             .panels = matrix.panels,
             .format = matrix.format,
             .epilogue = product.epilogue,
             .num_outputs = matrix.num_outputs,
             .y = product.y.data,
             .y_stride = product.y.stride};
  cut.unit_begin = product.unit_begin;
  cut.unit_end = std::min(product.unit_end, cut.job.num_units());
  const uint32_t units = cut.unit_end - cut.unit_begin;
  const uint32_t num_tiles = (cut.job.num_rows + cut.job.tile_rows - 1) / cut.job.tile_rows;
  // Several pieces a thread, so that one that loses its processor holds up little; about four
  // units, since that is how many panels few rows take at once. The pieces of few rows are as many
  // for each thread: nine pieces on two threads would let one of them wait for a ninth of the time.
  const uint32_t num_threads = pool_.num_threads();
  const uint32_t share = std::max(4u, units * num_tiles / (8 * num_threads) / 4 * 4);
  cut.num_pieces = (units + share - 1) / share;
  if (num_tiles == 1) {
    cut.num_pieces = (cut.num_pieces + num_threads - 1) / num_threads * num_threads;
  }
  cut.num_pieces = std::min(cut.num_pieces, units);
  cut.end = first_task + size_t{num_tiles} * cut.num_pieces;
  cuts_.push_back(cut);
  return cut.end;
}

void Products::run_task(size_t task, uint32_t thread) {
  const auto found = std::upper_bound(cuts_.begin(), cuts_.end(), task,
                                      [](size_t t, const Cut& cut) { return t < cut.end; });
  const size_t first = found == cuts_.begin() ? 0 : std::prev(found)->end;
  const auto index = static_cast<uint32_t>(task - first);
  const uint32_t row = index / found->num_pieces * found->job.tile_rows;
  const uint32_t piece = index % found->num_pieces;
  Product job = found->job;
  job.x += size_t{row} * job.x_stride;
  job.y += size_t{row} * job.y_stride;
  job.num_rows = std::min(job.tile_rows, job.num_rows - row);
  if (job.quantised.groups > 0) {
    const size_t groups = size_t{row} * job.quantised.groups;
    job.quantised.values += groups * kernels::kGroup;
    job.quantised.sums += groups;
    job.quantised.scales += row;
  }
  kernels_.product(job, found->piece_begin(piece), found->piece_begin(piece + 1),
                   thread_scratch_[thread].data());
}

}  // namespace crossdock
