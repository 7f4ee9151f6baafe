// A peer in a process of its own: this test program, executed again with an argument. It obeys
// lines on its standard input and reports lines on its standard output, and ends when its input
// does. The program's main must call run_peer_process_if_asked first.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "crossdock/sys/unique_fd.h"
#include "crossdock/transfer/transfer.h"

namespace crossdock {

// Returns the process's exit code when argv asks for a peer, -1 otherwise.
int run_peer_process_if_asked(int argc, char** argv);

class PeerProcess {
 public:
  PeerProcess(const std::string& transport, uint64_t segment_bytes, uint64_t epoch);
  ~PeerProcess();  // kills and reaps it
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const EndpointDescriptor& descriptor() const { return descriptor_; }
  pid_t process_id() const { return process_id_; }
  void signal(int number);
  void kill_and_reap();

  // ---- orders ----
  void connect(PeerId peer, uint64_t incarnation, const EndpointDescriptor& remote);
  void disconnect(PeerId peer) { send("disconnect " + std::to_string(peer)); }
  void fill(uint64_t seed) { send("fill " + std::to_string(seed)); }
  void write(PeerId peer, OperationId operation, const CopySpan& span);
  void fence(PeerId peer, OperationId operation);
  void notify(PeerId peer, const std::string& text);
  // Writes the whole segment to the peer's, again and again, with a fence after each.
  void stream(PeerId peer) { send("stream " + std::to_string(peer)); }
  void checksum() { send("checksum"); }

  // Reads what it has said since. Never blocks.
  void poll();
  // All lines so far, in order: "ready PEER KIND", "done OPERATION CODE", "message PEER TEXT",
  // "broken PEER GONE", "closed PEER STOPPED", "checksum VALUE".
  const std::vector<std::string>& lines() const { return lines_; }
  bool said(const std::string& line) const;

 private:
  void send(const std::string& line);

  pid_t process_id_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string partial_;
  std::vector<std::string> lines_;
  EndpointDescriptor descriptor_;
};

uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace crossdock
