#include "bind.h"

NB_MODULE(_native, m) {
  // The interpreter ends with objects alive that global state still refers to; that is no leak.
  nanobind::set_leak_warnings(false);
  crossdock::bind_commands(m);
  crossdock::bind_events(m);
  crossdock::bind_executor(m);
  crossdock::bind_link(m);
  crossdock::bind_status_error(m);
  crossdock::bind_tiers(m);
  crossdock::bind_transfer(m);
  crossdock::bind_weights(m);
}
