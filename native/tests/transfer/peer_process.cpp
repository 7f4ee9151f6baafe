#include "peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <sstream>

#include "crossdock/transfer/transfer_thread.h"
#include "pair.h"

namespace crossdock {
namespace {

constexpr char kArgument[] = "--as-peer-process";
constexpr OperationId kStreamOperations = 1u << 30;

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// The other process's side of the conversation.
class Obedient {
 public:
  explicit Obedient(std::unique_ptr<Transport> transport) : thread_(std::move(transport)) {}

  void run() {
    say("descriptor " + to_hex(encode(thread_.descriptor())));
    for (;;) {
      pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {thread_.event_fd(), POLLIN, 0}};
      ::poll(fds, 2, 1'000);
      if (fds[0].revents != 0) {
        char bytes[4096];
        const ssize_t length = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (length <= 0) return;
        input_.append(bytes, static_cast<size_t>(length));
      }
      for (size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
        obey(input_.substr(0, end));
        input_.erase(0, end + 1);
      }
      report();
    }
  }

 private:
  static void say(const std::string& line) { std::cout << line << std::endl; }

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "fill") return fill(words);
    if (verb == "checksum")
      return say("checksum " + std::to_string(checksum_of(thread_.segment())));
    PeerId peer = 0;
    words >> peer;
    if (verb == "connect") {
      uint64_t incarnation = 0;
      std::string descriptor;
      words >> incarnation >> descriptor;
      auto remote = decode_endpoint(from_hex(descriptor));
      thread_.submit(Connect{peer, incarnation, std::move(remote).value()});
    } else if (verb == "disconnect") {
      thread_.submit(Disconnect{peer});
    } else if (verb == "write") {
      WriteSpans write{0, peer, {CopySpan{}}};
      CopySpan& span = write.spans[0];
      words >> write.operation >> span.local_offset >> span.remote_offset >> span.length_bytes;
      thread_.submit(write);
    } else if (verb == "fence") {
      Fence fence{0, peer};
      words >> fence.operation;
      thread_.submit(fence);
    } else if (verb == "notify") {
      std::string text;
      words >> text;
      thread_.submit(Notify{peer, bytes_of(text)});
    } else if (verb == "stream") {
      stream_to(peer);
    }
  }

  void fill(std::istringstream& words) {
    uint64_t seed = 0;
    words >> seed;
    crossdock::fill(thread_.segment(), seed);
  }

  void stream_to(PeerId peer) {
    streaming_ = peer;
    const uint64_t bytes = thread_.segment().size();
    thread_.submit(WriteSpans{kStreamOperations, peer, {{0, 0, bytes}}});
    thread_.submit(Fence{kStreamOperations + 1, peer});
  }

  void report() {
    std::vector<TransferEvent> events;
    thread_.drain(events);
    for (const TransferEvent& event : events) {
      std::visit([this](const auto& concrete) { report(concrete); }, event);
    }
  }
  void report(const OperationDone& done) {
    if (done.operation < kStreamOperations) {
      say("done " + std::to_string(done.operation) + " " + std::string(name(done.status.code())));
    } else if (done.operation == kStreamOperations + 1) {
      if (!done.status.ok()) return say("stream ended");
      say("streamed");
      stream_to(streaming_);
    }
  }
  void report(const MessageArrived& arrived) {
    const auto& bytes = arrived.message;
    say("message " + std::to_string(arrived.peer) + " " +
        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void report(const PeerReady& ready) {
    say("ready " + std::to_string(ready.peer) + " " + std::string(name(ready.transport)));
  }
  void report(const PeerBroken& broken) {
    say("broken " + std::to_string(broken.peer) + " " + (broken.process_gone ? "gone" : "alive"));
  }
  void report(const PeerClosed& closed) {
    say("closed " + std::to_string(closed.peer) + " " + (closed.writes_stopped ? "yes" : "no"));
  }

  TransferThread thread_;
  std::string input_;
  PeerId streaming_ = 0;
};

}  // namespace

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

int run_peer_process_if_asked(int argc, char** argv) {
  if (argc != 5 || std::string(argv[1]) != kArgument) return -1;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto transport =
      create_ucx_transport(test_config(argv[2], std::stoull(argv[3]), 1), std::stoull(argv[4]));
  if (!transport.ok()) {
    std::cerr << transport.status().to_string() << std::endl;
    return 1;
  }
  Obedient(std::move(transport).value()).run();
  return 0;
}

PeerProcess::PeerProcess(const std::string& transport, uint64_t segment_bytes, uint64_t epoch) {
  int in[2];
  int out[2];
  EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  input_ = UniqueFd(in[1]);
  output_ = UniqueFd(out[0]);
  std::string bytes_text = std::to_string(segment_bytes);
  std::string epoch_text = std::to_string(epoch);
  process_id_ = ::fork();
  if (process_id_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    // UCX's sockets survive an exec; a copy of one would keep a connection up that we close.
    ::close_range(3, ~0u, 0);
    ::execl("/proc/self/exe", "peer", kArgument, transport.c_str(), bytes_text.c_str(),
            epoch_text.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
  while (lines_.empty() && std::chrono::steady_clock::now() < deadline) {
    pollfd fd{output_.get(), POLLIN, 0};
    ::poll(&fd, 1, 1'000);
    poll();
  }
  EXPECT_FALSE(lines_.empty()) << "the peer process does not start";
  if (lines_.empty()) return;
  auto descriptor = decode_endpoint(from_hex(lines_[0].substr(lines_[0].find(' ') + 1)));
  EXPECT_TRUE(descriptor.ok());
  if (descriptor.ok()) descriptor_ = std::move(descriptor).value();
}

PeerProcess::~PeerProcess() { kill_and_reap(); }

void PeerProcess::signal(int number) { ::kill(process_id_, number); }

void PeerProcess::kill_and_reap() {
  if (process_id_ < 0) return;
  ::kill(process_id_, SIGKILL);
  ::waitpid(process_id_, nullptr, 0);
  process_id_ = -1;
}

void PeerProcess::connect(PeerId peer, uint64_t incarnation, const EndpointDescriptor& remote) {
  send("connect " + std::to_string(peer) + " " + std::to_string(incarnation) + " " +
       to_hex(encode(remote)));
}

void PeerProcess::write(PeerId peer, OperationId operation, const CopySpan& span) {
  send("write " + std::to_string(peer) + " " + std::to_string(operation) + " " +
       std::to_string(span.local_offset) + " " + std::to_string(span.remote_offset) + " " +
       std::to_string(span.length_bytes));
}

void PeerProcess::fence(PeerId peer, OperationId operation) {
  send("fence " + std::to_string(peer) + " " + std::to_string(operation));
}

void PeerProcess::notify(PeerId peer, const std::string& text) {
  send("notify " + std::to_string(peer) + " " + text);
}

void PeerProcess::send(const std::string& line) {
  const std::string text = line + "\n";
  EXPECT_EQ(::write(input_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void PeerProcess::poll() {
  for (;;) {
    pollfd fd{output_.get(), POLLIN, 0};
    if (::poll(&fd, 1, 0) != 1) return;
    char bytes[4096];
    const ssize_t length = ::read(output_.get(), bytes, sizeof bytes);
    if (length <= 0) return;
    partial_.append(bytes, static_cast<size_t>(length));
    for (size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
      lines_.push_back(partial_.substr(0, end));
      partial_.erase(0, end + 1);
    }
  }
}

bool PeerProcess::said(const std::string& line) const {
  return std::find(lines_.begin(), lines_.end(), line) != lines_.end();
}

}  // namespace crossdock
