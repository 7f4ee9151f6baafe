// One UCX context with its one worker, and memory registered in it.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

// `what` failed with this status: our code for it, and UCX's words.
Status status_of(ucs_status_t status, const std::string& what);

// Whether one-sided operations of a connected endpoint go over queue pairs of rc alone: no call of
// UCX tells, only what ucp_ep_print_info prints.
bool writes_by_rc(ucp_ep_h endpoint);
bool writes_by_rc(const std::string& printed);

using UcxOptions = std::vector<std::pair<std::string, std::string>>;

// Driven by one thread.
class UcxWorker {
 public:
  // The options are those of UCX, without the prefix UCX_; they win over the environment.
  static Result<std::unique_ptr<UcxWorker>> create(uint64_t features, const UcxOptions& options);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  Result<std::vector<std::byte>> address() const;

 private:
  UcxWorker() = default;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
};

// Memory that peers may reach through one worker. The worker must outlive it.
class UcxMemory {
 public:
  // Lets UCX allocate, so that the transport's own kind of memory is used, and touches every page:
  // too little memory is RESOURCE_EXHAUSTED with both figures. `shared` says that it comes from
  // POSIX shared memory.
  static Result<std::unique_ptr<UcxMemory>> allocate(UcxWorker& worker, size_t bytes, bool shared);
  // Registers memory that something else owns.
  static Result<std::unique_ptr<UcxMemory>> map(UcxWorker& worker, std::byte* data, size_t bytes);
  // Memory that is registered nowhere: its bytes travel only in messages. Ours, or another's.
  static Result<std::unique_ptr<UcxMemory>> plain(size_t bytes);
  static std::unique_ptr<UcxMemory> unregistered(std::byte* data, size_t bytes);
  ~UcxMemory();
  UcxMemory(const UcxMemory&) = delete;
  UcxMemory& operator=(const UcxMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  ucp_mem_h handle() const { return handle_; }
  Result<std::vector<std::byte>> remote_key() const;

 private:
  UcxMemory(UcxWorker* worker, ucp_mem_h handle, std::byte* data, size_t bytes)
      : worker_(worker), handle_(handle), data_(data), bytes_(bytes) {}
  UcxWorker* worker_;
  ucp_mem_h handle_;    // null: unregistered
  bool owned_ = false;  // without a handle: mapped by us
  std::byte* data_;
  size_t bytes_;
};

}  // namespace crossdock
