// What module.cpp calls, one function a file.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace crossdock {

namespace nb = nanobind;

void bind_commands(nb::module_& m);
void bind_events(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_link(nb::module_& m);
void bind_status_error(nb::module_& m);
void bind_tiers(nb::module_& m);
void bind_transfer(nb::module_& m);
void bind_weights(nb::module_& m);

// Messages carry names of files, tensors and peers, which need not be UTF-8. What is not is
// replaced: an event that cannot be read would be lost, and those behind it.
inline nb::str to_text(const std::string& raw) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(raw.data(), static_cast<Py_ssize_t>(raw.size()), "replace"));
}

inline nb::bytes to_bytes(const std::string& raw) { return nb::bytes(raw.data(), raw.size()); }
inline std::string from_bytes(const nb::bytes& raw) { return {raw.c_str(), raw.size()}; }

}  // namespace crossdock
