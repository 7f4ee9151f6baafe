// What a dtype makes of a checkpoint's weights.
#include <nanobind/stl/string.h>

#include <optional>
#include <utility>

#include "bind.h"
#include "crossdock/model/weight_report.h"
#include "status_error.h"

namespace crossdock {

using namespace nb::literals;  // NOLINT

void bind_weights(nb::module_& m) {
  nb::class_<WeightReport>(m, "WeightReport")
      .def_ro("dtype", &WeightReport::dtype)
      .def_ro("num_weights", &WeightReport::num_weights)
      .def_ro("num_exact", &WeightReport::num_exact)
      .def_ro("memory_bytes", &WeightReport::memory_bytes)
      .def_prop_ro("file", [](const WeightReport& self) { return to_text(self.file); });
  m.def(
      "report_weights",
      [](const std::string& model_directory, const std::string& weight_dtype,
         std::string cache_directory, uint32_t num_threads) {
        WeightOptions options;
        options.dtype = value_or_raise(parse_weight_dtype(weight_dtype));
        options.cache_directory = std::move(cache_directory);
        std::optional<Result<WeightReport>> report;
        {
          nb::gil_scoped_release release;  // reads, packs and compares every weight
          report = report_weights(model_directory, options, num_threads);
        }
        return value_or_raise(std::move(*report));
      },
      "model_directory"_a, nb::kw_only(), "weight_dtype"_a = "auto", "cache_directory"_a = "",
      "num_threads"_a = 1);
}

}  // namespace crossdock
