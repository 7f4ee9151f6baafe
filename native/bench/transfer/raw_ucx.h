// UCX by itself: an endpoint without error handling, a put, a flush. What ours is held against.
#pragma once

#include <memory>

#include "../../src/transfer/ucx_address.h"
#include "../../src/transfer/ucx_worker.h"
#include "two_processes.h"

namespace crossdock {

// With our segment sizes, or with UCX's defaults.
inline UcxOptions raw_tcp_options(bool tuned) {
  UcxOptions options = {{"TLS", "tcp,self"}, {"NET_DEVICES", "lo"}};
  if (tuned) {
    options.emplace_back("TCP_TX_SEG_SIZE", "256k");
    options.emplace_back("TCP_RX_SEG_SIZE", "256k");
  }
  return options;
}

struct RawTarget {
  std::unique_ptr<UcxWorker> worker;
  std::unique_ptr<UcxMemory> memory;

  RawTarget(Board& board, bool tuned)
      : worker(must(UcxWorker::create(UCP_FEATURE_RMA, raw_tcp_options(tuned)))),
        memory(must(UcxMemory::allocate(*worker, kSizeMax, false))) {
    (tuned ? board.raw_base : board.plain_base).store(reinterpret_cast<uint64_t>(memory->data()));
    board.put(tuned ? Board::kRawAddress : Board::kPlainAddress, must(worker->address()));
    board.put(tuned ? Board::kRawKey : Board::kPlainKey, must(memory->remote_key()));
  }
};

class RawInitiator {
 public:
  RawInitiator(UcxOptions options, std::span<const std::byte> address,
               std::span<const std::byte> key, uint64_t base)
      : worker_(must(UcxWorker::create(UCP_FEATURE_RMA, options))), base_(base) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    must(status_of(ucp_ep_create(worker_->worker(), &params, &endpoint_), "endpoint"));
    must(status_of(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "key"));
  }
  void write(const std::byte* source, uint64_t bytes) {
    ucp_request_param_t param{};
    wait(ucp_put_nbx(endpoint_, source, bytes, base_, key_, &param));
    wait(ucp_ep_flush_nbx(endpoint_, &param));
  }
  std::byte* mapping() {
    void* mapped = nullptr;
    must(status_of(ucp_rkey_ptr(key_, base_, &mapped), "mapping the target's segment"));
    return static_cast<std::byte*>(mapped);
  }

 private:
  void wait(void* request) {
    if (!UCS_PTR_IS_PTR(request)) return must(status_of(UCS_PTR_STATUS(request), "raw UCX"));
    ucs_status_t status = UCS_INPROGRESS;
    const auto deadline = SteadyClock::now() + kWaitMax;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
      worker_->progress();
      if (SteadyClock::now() > deadline) fail("raw UCX does not answer");
    }
    ucp_request_free(request);
    must(status_of(status, "raw UCX"));
  }

  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t base_;
};

}  // namespace crossdock
