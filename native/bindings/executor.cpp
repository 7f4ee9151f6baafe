// The executor with a slab of its own, for tests and tools: the logits of any batch, and the bytes
// of any block.
#include "crossdock/model/executor.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "bind.h"
#include "crossdock/model/kv_convert.h"
#include "crossdock/sys/mapped_file.h"
#include "status_error.h"

namespace crossdock {

using namespace nb::literals;  // NOLINT

namespace {

struct SlabExecutor {
  std::unique_ptr<Executor> executor;
  PageBuffer slab;
  uint32_t num_blocks = 0;

  std::byte* block(BlockId id) const {
    return slab.data() + id * executor->layout().stride_bytes();
  }
};

// tokens, first_position, block_table, wants_logits
using Item = std::tuple<std::vector<int32_t>, uint32_t, std::vector<BlockId>, bool>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using SlabView = nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>;

// The one of that name; ValueError names the argument at fault.
template <typename Dtype, size_t kSize>
Dtype named(const Dtype (&all)[kSize], const std::string& text, const char* argument) {
  const auto* found = std::find_if(std::begin(all), std::end(all),
                                   [&](Dtype dtype) { return name(dtype) == text; });
  if (found == std::end(all)) throw nb::value_error(argument);
  return *found;
}

std::unique_ptr<SlabExecutor> load(const ExecutorConfig& config, uint32_t num_blocks) {
  nb::gil_scoped_release release;  // reads and packs every weight
  auto bound = std::make_unique<SlabExecutor>();
  auto executor = load_cpu_executor(config);
  if (!executor.ok()) {
    nb::gil_scoped_acquire acquire;
    raise_status(executor.status());
  }
  bound->executor = std::move(executor).value();
  auto slab = PageBuffer::allocate(num_blocks * bound->executor->layout().stride_bytes());
  if (!slab.ok()) {
    nb::gil_scoped_acquire acquire;
    raise_status(slab.status());
  }
  bound->slab = std::move(slab).value();
  bound->num_blocks = num_blocks;
  bound->executor->bind_slab(bound->slab.data(), num_blocks);
  return bound;
}

Logits run(SlabExecutor& self, const std::vector<Item>& items, uint32_t first_generated) {
  std::vector<BatchItem> batch;
  for (const auto& [tokens, first_position, block_table, wants_logits] : items) {
    batch.push_back({tokens, first_position, block_table, wants_logits, first_generated});
  }
  std::unique_ptr<float[]> rows;
  size_t size = 0;
  {
    nb::gil_scoped_release release;
    const auto logits = self.executor->run(batch, {});
    size = logits.size();
    rows = std::make_unique<float[]>(size);
    std::copy(logits.begin(), logits.end(), rows.get());
  }
  float* const data = rows.release();
  nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<float*>(memory); });
  const size_t vocab_size = self.executor->model().vocab_size;
  return Logits(data, {size / vocab_size, vocab_size}, owner);
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<SlabExecutor>(m, "Executor")
      .def_static(
          "load",
          [](std::string model_directory, uint32_t num_blocks, const std::string& weight_dtype,
             const std::string& kv_dtype, const std::string& mla_prefill, uint32_t num_threads,
             std::string kernels, std::string cache_directory) {
            ExecutorConfig config;
            config.model_directory = std::move(model_directory);
            config.weights.dtype = named(kAllWeightDtypes, weight_dtype, "weight_dtype");
            config.weights.cache_directory = std::move(cache_directory);
            config.kv_dtype = named(kAllDTypes, kv_dtype, "kv_dtype");
            config.mla_prefill = value_or_raise(parse_mla_prefill(mla_prefill));
            config.num_threads = num_threads;
            config.kernels = std::move(kernels);
            return load(config, num_blocks);
          },
          "model_directory"_a, nb::kw_only(), "num_blocks"_a, "weight_dtype"_a = "auto",
          "kv_dtype"_a = "f32", "mla_prefill"_a = "absorbed", "num_threads"_a = 1,
          "kernels"_a = "auto", "cache_directory"_a = "")
      .def_prop_ro("numerics_id", [](SlabExecutor& self) { return self.executor->numerics_id(); })
      .def_prop_ro("layout_text",
                   [](SlabExecutor& self) { return self.executor->layout().to_string(); })
      .def_prop_ro("eos_token_ids",
                   [](SlabExecutor& self) { return self.executor->model().eos_token_ids; })
      .def_prop_ro(
          "slab",
          [](SlabExecutor& self) {
            return SlabView(self.slab.data(),
                            {self.num_blocks, self.executor->layout().stride_bytes()});
          },
          nb::rv_policy::reference_internal)
      .def("run", &run, "items"_a, nb::kw_only(), "first_generated"_a = UINT32_MAX)
      .def(
          "zero_tail",
          [](SlabExecutor& self, BlockId block_id, uint32_t num_used_slots) {
            self.executor->zero_tail(block_id, num_used_slots);
          },
          "block_id"_a, "num_used_slots"_a)
      .def(
          "convert_block",
          [](SlabExecutor& self, const SlabExecutor& source, BlockId from, BlockId to) {
            convert_block(source.executor->layout(), self.executor->layout(), source.block(from),
                          self.block(to));
          },
          "source"_a, "from_block_id"_a, "to_block_id"_a);
}

}  // namespace crossdock
