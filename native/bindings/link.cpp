// The front's end of the two rings.
#include "crossdock/engine/link.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind.h"
#include "status_error.h"

namespace crossdock {

using namespace nb::literals;  // NOLINT

void bind_link(nb::module_& m) {
  nb::class_<FrontLink>(m, "EngineLink")
      .def(
          "__init__",
          [](FrontLink* self, size_t ring_bytes) {
            new (self) FrontLink(value_or_raise(FrontLink::create(ring_bytes)));
          },
          "ring_bytes"_a = 4 << 20)
      .def_prop_ro("memory_fd", &FrontLink::memory_fd)
      .def_prop_ro("to_engine_fd", &FrontLink::to_engine_fd)
      .def_prop_ro("to_front_fd", &FrontLink::to_front_fd)
      .def(
          "send",
          [](FrontLink& self, const link::Command& command) {
            const Status status = self.send(command);
            if (status.ok()) return true;
            if (status.code() == StatusCode::kResourceExhausted) return false;
            throw std::invalid_argument(status.to_string());
          },
          "command"_a)
      .def("receive",
           [](FrontLink& self) {
             auto events = self.receive();
             if (!events.ok()) throw std::runtime_error(events.status().to_string());
             return std::move(events).value();
           })
      .def("progress",
           [](const FrontLink& self) { return std::pair(self.progress(), self.in_step()); });
}

}  // namespace crossdock
