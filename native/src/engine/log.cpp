#include "log.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

namespace crossdock {

void log_line(std::string_view level, std::string_view event, std::string_view message) {
  nlohmann::json line = {{"level", level}, {"event", event}, {"message", message}};
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // One write a line, so that lines of several threads do not mix; a lost line is no error.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace crossdock
