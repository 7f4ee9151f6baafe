// One peer of the UCX transport: two endpoints that live and break together.
//
// Life cycle.
//   1. Both sides are told to connect. The side with the smaller epoch is the *caller*: it connects
//      to the other's listener, so that the two ends of a connection belong to each other and to
//      nothing else. (Endpoints made from worker addresses are matched by UCX's own counters; a
//      forced close of one may then leave the peer's writes flowing.)
//   2. The caller sends a hello on the channel, the other answers with its own. Each says whether
//      it could map the other's segment; if both could, data goes through shared memory.
//   3. Otherwise the caller connects once more, for data.
//   4. Each side flushes the data endpoint and reads one byte of the other's segment through it,
//      then says `probed`. Own probe done and the other's `probed` seen: PeerReady.
//   5. An endpoint's error, the end of the peer's process, or a handshake that takes too long
//      breaks the pair: both endpoints are closed by force, operations end, PeerBroken.
//   6. Disconnect does the same and ends in PeerClosed.
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "channel.h"
#include "crossdock/transfer/transfer.h"
#include "data_path.h"
#include "frame_link.h"
#include "liveness.h"
#include "ucx_address.h"
#include "ucx_worker.h"

namespace crossdock {

using Clock = std::chrono::steady_clock;

// What a transport lends to its peers.
struct UcxFabric {
  UcxWorker* network = nullptr;
  UcxMemory* network_memory = nullptr;
  UcxWorker* shared = nullptr;  // null where shared memory is not offered
  UcxMemory* shared_memory = nullptr;
  const EndpointDescriptor* self = nullptr;
  const TransportConfig* config = nullptr;
  int epoll_fd = -1;
  ucp_err_handler_t on_error{};
  std::vector<TransferEvent>* events = nullptr;
};

class UcxPeer {
 public:
  // Begins to connect. An error here leaves nothing behind.
  static Result<std::unique_ptr<UcxPeer>> create(UcxFabric& fabric, const Connect& connect,
                                                 Clock::time_point now);
  ~UcxPeer();
  UcxPeer(const UcxPeer&) = delete;
  UcxPeer& operator=(const UcxPeer&) = delete;

  PeerId id() const { return id_; }
  uint64_t epoch() const { return remote_.epoch; }
  uint64_t incarnation() const { return incarnation_; }
  uint64_t remote_segment_bytes() const { return remote_.segment_bytes; }
  bool ready() const { return phase_ == Phase::kReady; }
  bool broken() const { return phase_ >= Phase::kBroken; }
  bool owns(ucp_ep_h endpoint) const;
  // Closed and reported so; at most the proof that the peer's writes have stopped is missing.
  bool closed() const { return closed_reported_; }

  // ---- what arrives ----
  // On the side that is called: whether a connection that begins with this message is expected now.
  bool accepts(MessageKind kind) const;
  // The accepted endpoint whose first message this is becomes ours.
  void adopt(ucp_ep_h endpoint, const InboundMessage& hello);
  void on_message(InboundMessage message);
  // Within UCX's progress.
  void on_frame(const FrameHead& head, std::span<const std::byte> body);
  void on_endpoint_error(const Status& status);
  void on_closed_notice(pid_t sender) { their_side_closed_ |= sender == remote_.process_id; }
  void check_process();

  // ---- operations ----
  DataPath& data() { return data_path_; }
  // Posts the next piece of ours, or of what the peer has asked for. Returns its bytes or 0.
  size_t pump();
  bool can_pump() const;
  void notify(std::span<const std::byte> message);
  size_t num_messages_outstanding() const { return channel_.num_outstanding(); }
  void disconnect();

  // Moves time on. Returns true when nothing is left of this peer and it may be destroyed.
  bool advance(Clock::time_point now);
  // When advance() has to be called at the latest; max() when no time matters.
  Clock::time_point deadline() const;
  // A close is under way that only progress of the shared worker ends.
  bool needs_shared_progress() const { return shared_close_ != nullptr; }

 private:
  enum class Phase : uint8_t { kHandshake, kReady, kBroken, kClosing, kAwaitingProof };
  enum class Wire : uint8_t { kNone, kFlushing, kFlushed };

  UcxPeer(UcxFabric& fabric, const Connect& connect, UcxAddress address, UcxRemoteKeys keys);
  bool is_caller() const { return fabric_.self->epoch < remote_.epoch; }
  Result<ucp_ep_h> call();
  Status watch_process();
  SharedMemory try_shared_memory();
  Status map_shared_memory();
  void choose_transport();
  void handle_in_order(const InboundMessage& message);
  void begin_wiring();
  static void on_wired(void* request, ucs_status_t status, void* user_data);
  void open_data_path();
  Status open_link();
  bool sends_frames() const;
  std::string staged() const;
  DataLink* link() const;
  void advance_handshake(Clock::time_point now);
  void become_ready();
  void break_pair(const Status& status, Clock::time_point now);
  void close_endpoints();
  void close_by_force(ucp_ep_h& endpoint);
  void await_discard();
  bool closes_done();
  bool writes_stopped();

  UcxFabric& fabric_;
  const PeerId id_;
  const uint64_t incarnation_;
  const EndpointDescriptor remote_;
  const UcxAddress address_;
  const UcxRemoteKeys keys_;

  TransportKind network_kind_ = TransportKind::kTcp;  // the best that both offer
  bool network_offered_ = false;                      // by both sides

  Phase phase_ = Phase::kHandshake;
  Clock::time_point handshake_deadline_;
  TransportKind transport_ = TransportKind::kTcp;
  bool transport_chosen_ = false;
  SharedMemory shared_memory_ = SharedMemory::kNotOffered;
  bool probe_posted_ = false;
  bool probed_sent_ = false;
  bool probed_received_ = false;
  bool their_side_closed_ = false;
  bool closed_reported_ = false;

  std::unique_ptr<ProcessWatch> watch_;
  ucp_ep_h channel_endpoint_ = nullptr;
  ucp_ep_h data_endpoint_ = nullptr;  // of the network, when data does not go by shared memory
  ucp_rkey_h data_key_ = nullptr;
  ucp_ep_h shared_endpoint_ = nullptr;
  ucp_rkey_h shared_key_ = nullptr;
  std::byte* shared_mapping_ = nullptr;  // the peer's segment, here
  bool rc_lane_missing_ = false;         // UCX took something else for one-sided operations
  Wire wire_ = Wire::kNone;
  Status wire_status_;
  uint64_t next_sequence_in_ = 0;
  std::map<uint64_t, InboundMessage> early_messages_;

  // Set when the pair breaks; PeerBroken follows at the latest at that time.
  std::optional<Status> break_status_;
  Clock::time_point break_report_at_;
  std::vector<void*> force_closes_;
  void* shared_close_ = nullptr;

  Channel channel_;
  DataPath data_path_;
  std::unique_ptr<FrameLink> frame_link_;  // over tcp, and where a segment is not registered
  std::unique_ptr<DataLink> other_link_;   // otherwise
  std::vector<FrameHead> early_fences_;
  bool bad_frame_ = false;
};

}  // namespace crossdock
