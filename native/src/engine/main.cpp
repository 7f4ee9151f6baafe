// crossdock-engine: the process that a front starts and owns.
//
//   crossdock-engine --link-fd N --to-engine-fd N --to-front-fd N --front-pid PID --config JSON
//
// Exit codes: 0 after Shutdown, 1 after a failure that was reported, 2 for bad arguments.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "crossdock/engine/engine.h"
#include "log.h"

namespace crossdock {
namespace {

constexpr const char* kUsage =
    "usage: crossdock-engine --link-fd N --to-engine-fd N --to-front-fd N --front-pid PID "
    "--config JSON\n"
    "The engine of a crossdock prefill or decode instance; its front starts it.\n";

struct Arguments {
  int link_fd = -1;
  int to_engine_fd = -1;
  int to_front_fd = -1;
  int front_pid = -1;
  std::string config;
};

bool parse_arguments(int argc, char** argv, Arguments& arguments) {
  const std::map<std::string_view, int*> numbers = {{"--link-fd", &arguments.link_fd},
                                                    {"--to-engine-fd", &arguments.to_engine_fd},
                                                    {"--to-front-fd", &arguments.to_front_fd},
                                                    {"--front-pid", &arguments.front_pid}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    const std::string_view value = argv[i + 1];
    if (key == "--config") {
      arguments.config = value;
      continue;
    }
    const auto number = numbers.find(key);
    if (number == numbers.end()) return false;
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), *number->second);
    if (error != std::errc() || end != value.data() + value.size()) return false;
  }
  return argc % 2 == 1 && arguments.link_fd >= 0 && arguments.to_engine_fd >= 0 &&
         arguments.to_front_fd >= 0 && arguments.front_pid > 0 && !arguments.config.empty();
}

// The engine is of no use without its front, and its memory must not outlive it: the kernel kills
// it with the front, whatever the loop is doing and even where the engine is stopped.
bool die_with_front(int front_pid) {
  return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == front_pid;
}

int report_failure(EngineLink& link, const Status& status) {
  log_line("error", "engine_start_failed", status.to_string());
  link.send(
      link::StartFailed{.code = static_cast<uint8_t>(status.code()), .message = status.message()});
  return 1;
}

int run(const Arguments& arguments) {
  auto link = EngineLink::attach(arguments.link_fd, arguments.to_engine_fd, arguments.to_front_fd);
  if (!link.ok()) {
    log_line("error", "link_failed", link.status().to_string());
    return 1;
  }
  if (!die_with_front(arguments.front_pid)) {
    log_line("error", "front_gone", "--front-pid is not the process that started this engine");
    return 1;
  }
  auto config = parse_engine_config(arguments.config);
  if (!config.ok()) return report_failure(link.value(), config.status());
  auto engine = Engine::start(config.value(), link.value());
  if (!engine.ok()) return report_failure(link.value(), engine.status());
  log_line("info", "engine_ready", config.value().instance_id);
  Status status = engine.value()->run();
  if (!status.ok()) {
    log_line("error", "engine_failed", status.to_string());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  crossdock::Arguments arguments;
  if (!crossdock::parse_arguments(argc, argv, arguments)) {
    std::fputs(crossdock::kUsage, stderr);
    return 2;
  }
  // Ctrl-C goes to the whole group; it is the front that drains and then says Shutdown.
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  return crossdock::run(arguments);
}
