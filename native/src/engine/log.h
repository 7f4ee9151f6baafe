// The engine's log: one JSON object a line on stderr, which its front forwards.
#pragma once

#include <string_view>

namespace crossdock {

void log_line(std::string_view level, std::string_view event, std::string_view message);

}  // namespace crossdock
