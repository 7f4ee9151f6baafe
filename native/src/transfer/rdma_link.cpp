#include <utility>

#include "data_link.h"

namespace crossdock {
namespace {

// Large enough for line rate, small enough that peers take turns.
constexpr uint64_t kPieceBytesMax = 4u << 20;

}  // namespace

DataLink::PieceMax RdmaLink::piece_max() const { return {kPieceBytesMax, 1}; }

ucp_request_param_t RdmaLink::param_for(Posted& posted) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_complete;
  param.user_data = &posted;
  return param;
}

void RdmaLink::transfer(const CopySpan& span, uint64_t token, bool write) {
  auto posted = std::make_unique<Posted>(Posted{this, token});
  ucp_request_param_t param = param_for(*posted);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  param.memh = target_.local_memory;
  std::byte* local = target_.local_base + span.local_offset;
  const uint64_t remote = target_.remote_base + span.remote_offset;
  track(write ? ucp_put_nbx(target_.endpoint, local, span.length_bytes, remote, target_.remote_key,
                            &param)
              : ucp_get_nbx(target_.endpoint, local, span.length_bytes, remote, target_.remote_key,
                            &param),
        std::move(posted));
}

void RdmaLink::fence(uint64_t token) {
  auto posted = std::make_unique<Posted>(Posted{this, token, true});
  const ucp_request_param_t param = param_for(*posted);
  track(ucp_ep_flush_nbx(target_.endpoint, &param), std::move(posted));
}

bool RdmaLink::pump() {
  if (read_backs_.empty()) return false;
  auto posted = std::make_unique<Posted>(Posted{this, read_backs_.front()});
  read_backs_.pop_front();
  const ucp_request_param_t param = param_for(*posted);
  std::byte* local = &posted->read_back;
  track(ucp_get_nbx(target_.endpoint, local, 1, target_.remote_base, target_.remote_key, &param),
        std::move(posted));
  return true;
}

void RdmaLink::close() {
  closed_ = true;
  for (const uint64_t token : std::exchange(read_backs_, {})) {
    sink_.on_piece(token, UCS_ERR_CANCELED);
  }
}

void RdmaLink::track(ucs_status_ptr_t request, std::unique_ptr<Posted> posted) {
  if (UCS_PTR_IS_PTR(request)) {
    ++num_requests_;
    (void)posted.release();  // on_complete deletes it
  } else {
    complete(*posted, UCS_PTR_STATUS(request));
  }
}

void RdmaLink::on_complete(void* request, ucs_status_t status, void* user_data) {
  std::unique_ptr<Posted> posted(static_cast<Posted*>(user_data));
  ucp_request_free(request);
  --posted->link->num_requests_;
  posted->link->complete(*posted, status);
}

void RdmaLink::complete(const Posted& posted, ucs_status_t status) {
  if (posted.flush_before_read_back && status == UCS_OK && !closed_) {
    read_backs_.push_back(posted.token);
  } else {
    sink_.on_piece(posted.token, status);
  }
}

}  // namespace crossdock
