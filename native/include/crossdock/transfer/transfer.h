// Moves spans between segments, one-sided, and carries short messages beside them.
//
// It knows spans and ids, nothing of blocks, models or requests. Operations are data; a full queue
// is a returned status. One Transport is driven by exactly one thread (see transfer_thread.h).
//
// A *peer* is one connection to one engine in one incarnation: two endpoints (data, channel) that
// live and break together. Both sides connect; a peer is usable once `PeerReady` says so, which
// means that a hello has crossed in both directions and the data endpoint is wired.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

using PeerId = uint32_t;  // chosen by the caller, never reused within a process
using OperationId = uint64_t;
// Orders the operations to one peer: those of one stream happen one after the other, and streams
// take turns, so that a long one does not hold up the others.
using StreamId = uint64_t;

enum class TransportKind : uint8_t { kLoopback = 0, kSharedMemory = 1, kTcp = 2, kRc = 3 };
std::string_view name(TransportKind kind);

// Whether data goes through shared memory, and if not, why not.
enum class SharedMemory : uint8_t {
  kUsed = 0,
  kNotOffered = 1,       // by both sides
  kOtherHost = 2,        // or another PID or IPC namespace
  kProcessUnseen = 3,    // its socket cannot be reached: another network namespace
  kNotMapped = 4,        // the peer's segment cannot be mapped here
  kNotMappedByPeer = 5,  // nor ours there
};
std::string_view describe(SharedMemory shared_memory);

// What a peer must know to reach this engine's segment. Exchanged by the fronts over gRPC, once
// per pair and epoch. Travels as bytes (encode/decode): the fronts do not look inside.
struct EndpointDescriptor {
  uint64_t epoch = 0;       // 64 random bits drawn when the engine started
  std::string host_id;      // equal on both sides: memory can be shared (boot id,
                            // PID and IPC namespaces)
  int32_t process_id = 0;   // watched by pidfd where host_id is equal
  std::string socket_path;  // abstract Unix socket whose end means this process is gone
  std::vector<std::byte> worker_address;
  std::vector<std::byte> remote_key;  // of the segment
  uint64_t segment_address = 0;
  uint64_t segment_bytes = 0;
  std::string transports;  // what this side offers, comma-separated: "shm,tcp"
  // Why the segment could not be shared or registered, so that its bytes are copied through UCX's
  // own buffers instead; empty: it was.
  std::string staged;
};
std::vector<std::byte> encode(const EndpointDescriptor& descriptor);
Result<EndpointDescriptor> decode_endpoint(std::span<const std::byte> bytes);

// Bytes [local_offset, +length) of our segment and [remote_offset, +length) of the peer's.
struct CopySpan {
  uint64_t local_offset = 0;
  uint64_t remote_offset = 0;
  uint64_t length_bytes = 0;
};

// ---- operations -------------------------------------------------------------------------------
struct Connect {
  PeerId peer = 0;
  uint64_t incarnation = 0;  // of the pair; equal on both sides, marks every message
  EndpointDescriptor remote;
};
// Closes both endpoints by force. Ends in PeerClosed once no local operation is outstanding.
struct Disconnect {
  PeerId peer = 0;
};
struct WriteSpans {
  OperationId operation = 0;
  PeerId peer = 0;
  std::vector<CopySpan> spans;  // adjacent spans are merged before they are posted
  StreamId stream = 0;
};
struct ReadSpans {
  OperationId operation = 0;
  PeerId peer = 0;
  std::vector<CopySpan> spans;
  StreamId stream = 0;
};
// Done with OK only when every write of its stream before it has arrived: a flush and, where data
// and messages travel on different endpoints, one byte read back.
struct Fence {
  OperationId operation = 0;
  PeerId peer = 0;
  StreamId stream = 0;
};
// One message on the channel: reliable and in order while the peer lives, never retried beyond.
struct Notify {
  PeerId peer = 0;
  std::vector<std::byte> message;
};
using Operation = std::variant<Connect, Disconnect, WriteSpans, ReadSpans, Fence, Notify>;

// ---- outcomes ---------------------------------------------------------------------------------
struct OperationDone {  // of a WriteSpans, ReadSpans or Fence
  OperationId operation = 0;
  Status status;
  uint64_t bytes = 0;          // moved
  uint32_t num_transfers = 0;  // one-sided operations it took after merging
  uint64_t duration_ns = 0;    // first post to completion
};
struct MessageArrived {
  PeerId peer = 0;
  std::vector<std::byte> message;
};
struct PeerReady {
  PeerId peer = 0;
  TransportKind transport = TransportKind::kSharedMemory;  // of the data endpoint
  SharedMemory shared_memory = SharedMemory::kUsed;        // or why it is not used
  std::string staged;  // where data is staged that need not be: by which side, and why
};
// The connection failed or the peer is gone. Its outstanding operations end with an error; the
// caller answers with Disconnect.
struct PeerBroken {
  PeerId peer = 0;
  Status status;
  bool process_gone = false;  // proven: the peer's process has ended
};
// The answer to Disconnect: no operation of ours touches memory on either side any more.
// `writes_stopped`: nor can a write of theirs land in our segment (tcp, rc: the endpoint they
// write through is closed; shared memory: their process is gone, or their side has closed too and
// said so). When it is false, a second PeerClosed with true follows as soon as that is proven.
struct PeerClosed {
  PeerId peer = 0;
  bool writes_stopped = false;
};
using TransferEvent =
    std::variant<OperationDone, MessageArrived, PeerReady, PeerBroken, PeerClosed>;

struct TransportConfig {
  std::string transport = "auto";  // "auto" | "shm" | "tcp" | "rc"
  uint64_t segment_bytes = 0;
  bool huge_pages = false;
  // Where tcp listens ("lo", "eth0"); empty: the first interface that is up and not loopback.
  std::string bind_interface;
  // The port of an RDMA device that carries rc, as UCX names it ("mlx5_0:1"), and the index of its
  // GID. Without a device rc is not offered.
  std::string rdma_device;
  std::string gid_index = "auto";  // UCX's own choice, right on InfiniBand
  uint16_t listen_port = 0;        // of the handoff channel; 0: any free one
  // Per peer. What is in flight goes before whatever comes next, so it bounds the wait of a small
  // handoff behind a large one; enough for a network of 10 GB/s and a millisecond.
  uint64_t in_flight_bytes_max = 16u << 20;
  uint32_t handshake_timeout_ms = 20'000;  // from Connect to PeerReady, else PeerBroken
};

class Transport {
 public:
  virtual ~Transport() = default;
  // The registered arena, allocated when the transport was created.
  virtual std::span<std::byte> segment() = 0;
  virtual const EndpointDescriptor& descriptor() const = 0;
  // RESOURCE_EXHAUSTED when the queue is full (post again after a poll), NOT_FOUND for an unknown
  // peer, INVALID_ARGUMENT for a span outside either segment.
  virtual Status post(Operation operation) = 0;
  // Progresses and appends what happened. Returns whether anything did.
  virtual bool poll(std::vector<TransferEvent>& events) = 0;
  // A descriptor that becomes readable when poll has something to do; arm() returns false when it
  // already has (then poll, do not sleep).
  virtual int wake_fd() const = 0;
  virtual bool arm() = 0;
};

Result<std::unique_ptr<Transport>> create_ucx_transport(const TransportConfig& config,
                                                        uint64_t epoch);

}  // namespace crossdock
