#include "status_error.h"

#include <nanobind/stl/string.h>

#include "bind.h"

namespace crossdock {

void raise_status(const Status& status) {
  const nb::object type = nb::module_::import_("crossdock._native").attr("StatusError");
  const nb::object arguments =
      nb::make_tuple(static_cast<uint32_t>(status.code()), to_text(status.message()));
  PyErr_SetObject(type.ptr(), arguments.ptr());
  throw nb::python_error();
}

void bind_status_error(nb::module_& m) {
  m.attr("StatusError") =
      nb::steal(PyErr_NewException("crossdock._native.StatusError", PyExc_Exception, nullptr));
}

}  // namespace crossdock
