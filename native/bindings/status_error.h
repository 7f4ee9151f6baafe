// A Status as a Python exception: StatusError(code, message).
#pragma once

#include <nanobind/nanobind.h>

#include "crossdock/sys/status.h"

namespace crossdock {

[[noreturn]] void raise_status(const Status& status);

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise_status(result.status());
  return std::move(result).value();
}

}  // namespace crossdock
