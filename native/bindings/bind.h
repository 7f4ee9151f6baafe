// What module.cpp calls, one function a file.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace crossdock {

namespace nb = nanobind;

void bind_commands(nb::module_& m);
void bind_events(nb::module_& m);
void bind_link(nb::module_& m);
void bind_status_error(nb::module_& m);
void bind_tiers(nb::module_& m);
void bind_transfer(nb::module_& m);

inline nb::bytes to_bytes(const std::string& raw) { return nb::bytes(raw.data(), raw.size()); }
inline std::string from_bytes(const nb::bytes& raw) { return {raw.c_str(), raw.size()}; }

}  // namespace crossdock
