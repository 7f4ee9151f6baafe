// The Transport over UCX: a worker for the network (tcp or rc) that also carries every peer's
// channel, and, where it is offered, one that knows nothing but shared memory.
#pragma once

#include <ucp/api/ucp.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "channel.h"
#include "crossdock/sys/scratch_directory.h"
#include "crossdock/transfer/transfer.h"
#include "liveness.h"
#include "ucx_peer.h"
#include "ucx_worker.h"

namespace crossdock {

class UcxTransport : public Transport {
 public:
  static Result<std::unique_ptr<Transport>> create(const TransportConfig& config, uint64_t epoch);
  ~UcxTransport() override;

  std::span<std::byte> segment() override;
  const EndpointDescriptor& descriptor() const override { return descriptor_; }
  Status post(Operation operation) override;
  bool poll(std::vector<TransferEvent>& events) override;
  int wake_fd() const override { return epoll_fd_.get(); }
  bool arm() override;

 private:
  // A connection that arrived and whose pair is not known yet.
  struct Accepted {
    ucp_ep_h endpoint = nullptr;
    Clock::time_point deadline;
    bool introduced = false;
    InboundMessage hello;
  };

  UcxTransport(const TransportConfig& config, uint64_t epoch);
  bool uses_rc() const;
  bool uses_tcp() const { return !uses_rc() || config_.transport == "auto"; }
  Status open_network(bool staged);
  Status open_workers();
  Status open_shared_worker();
  Status open_segment();
  Status open_shared_memory(UcxAddress& address, UcxRemoteKeys& keys);
  Status open_network_memory(UcxRemoteKeys& keys);
  Status stage_network_memory(const Status& why);
  void offer_transports();
  Status open_listener();
  Status watch_worker();
  void fill_fabric();

  Status connect(const Connect& connect);
  template <typename Transfer>
  Status post_transfer(const Transfer& transfer);
  Status post_fence(const Fence& fence);
  Status post_notify(const Notify& notify);
  Result<UcxPeer*> ready_peer(PeerId id);

  static void on_connection(ucp_conn_request_h request, void* user_data);
  static void on_endpoint_error(void* user_data, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t on_message(void* user_data, const void* header, size_t header_bytes,
                                 void* body, size_t body_bytes, const ucp_am_recv_param_t* param);

  static ucs_status_t on_frame(void* user_data, const void* header, size_t header_bytes, void* body,
                               size_t body_bytes, const ucp_am_recv_param_t* param);
  Status set_message_callback(unsigned id, ucp_am_recv_callback_t callback);

  bool progress();
  void handle_failed_endpoints();
  void handle_inbound();
  void claim(UcxPeer& peer);
  void drop_unclaimed(Clock::time_point now);
  void handle_liveness();
  void pump();
  UcxPeer* find_peer(uint64_t epoch, uint64_t incarnation);
  void close_by_force(ucp_ep_h endpoint);
  void set_timer(Clock::time_point deadline);

  const TransportConfig config_;
  bool rc_refused_ = false;  // automatic choice found that it cannot be had
  EndpointDescriptor descriptor_;
  UniqueFd epoll_fd_;
  UniqueFd timer_fd_;
  std::unique_ptr<LivenessListener> liveness_;
  std::optional<ScratchDirectory> scratch_;  // while the segment is made
  std::unique_ptr<UcxWorker> shared_;
  std::unique_ptr<UcxWorker> network_;
  std::unique_ptr<UcxMemory> shared_memory_;
  std::unique_ptr<UcxMemory> network_memory_;
  ucp_listener_h listener_ = nullptr;
  UcxFabric fabric_;

  std::map<PeerId, std::unique_ptr<UcxPeer>> peers_;
  std::vector<Accepted> accepted_;
  std::vector<void*> closes_;
  // Filled by UCX's callbacks, emptied by poll.
  std::vector<std::pair<ucp_ep_h, ucs_status_t>> failed_endpoints_;
  std::vector<InboundMessage> inbound_;
  std::vector<TransferEvent> events_;
  PeerId last_pumped_ = 0;
  Clock::time_point timer_deadline_ = Clock::time_point::max();
  uint64_t num_polls_ = 0;
  uint64_t num_dropped_messages_ = 0;
};

}  // namespace crossdock
