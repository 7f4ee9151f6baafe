#include "ucx_worker.h"

#include <sys/mman.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "crossdock/sys/shared_memory.h"

namespace crossdock {
namespace {

constexpr const char* kLockedMemoryHint = " (is the limit of locked memory, ulimit -l, too low?)";

StatusCode code_of(ucs_status_t status) {
  switch (status) {
    case UCS_OK: return StatusCode::kOk;
    case UCS_ERR_CANCELED: return StatusCode::kCancelled;
    case UCS_ERR_TIMED_OUT: return StatusCode::kDeadlineExceeded;
    case UCS_ERR_INVALID_PARAM: return StatusCode::kInvalidArgument;
    case UCS_ERR_UNSUPPORTED: return StatusCode::kUnimplemented;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT: return StatusCode::kResourceExhausted;
    case UCS_ERR_BUSY: return StatusCode::kAlreadyExists;
    case UCS_ERR_NO_DEVICE: return StatusCode::kFailedPrecondition;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_IO_ERROR: return StatusCode::kUnavailable;
    default: return StatusCode::kInternal;
  }
}

// When it is loaded, UCX takes over SIGSEGV and its like to print a backtrace and wait for a
// debugger, and SIGHUP to attach one. A service must die of the first and decide on the second
// itself. Its environment is read at that time too, so the handlers are taken back here. Errors
// are logged once, by whoever decides on the Status, so UCX keeps silent unless it is asked.
void tame_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP}) {
      ucs_debug_disable_signal(signal);
    }
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) {
      ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    }
  });
}

Status too_little(const char* what, size_t bytes, uint64_t available) {
  return {StatusCode::kResourceExhausted,
          "segment_bytes is " + std::to_string(bytes) + ", " + what + " has " +
              std::to_string(available) +
              " bytes left; ask for a smaller segment or give this machine or container more"};
}

// Allocates every page now. Where the kernel cannot do that without a signal (before 5.14), pages
// are written one by one; the sizes were compared before.
Status populate(std::byte* data, size_t bytes) {
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  constexpr size_t kStepBytes = size_t{64} << 20;
  for (size_t offset = 0; offset < bytes; offset += kStepBytes) {
    const size_t step = std::min(kStepBytes, bytes - offset);
    if (::madvise(data + offset, step, MADV_POPULATE_WRITE) == 0) continue;
    if (errno == EINVAL) {
      std::memset(data + offset, 0, step);
      continue;
    }
    return too_little("memory", bytes, available_memory_bytes());
  }
  return {};
}

}  // namespace

bool writes_by_rc(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t length = 0;
  std::FILE* stream = ::open_memstream(&text, &length);
  if (stream == nullptr) return false;
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::string printed(text, length);
  std::free(text);
  return writes_by_rc(printed);
}

// "lane[1]:  2:rc_verbs/rxe0:1.0 md[2] -> md[2]/ib/sysdev[255] rma_bw#0 am am_bw#0" is a lane, and
// "put[1]: 0..<short>..81" says that puts take it. Without any such line UCX has chosen among the
// lanes with "rma" by other rules, or makes puts of messages over whatever lane carries those.
bool writes_by_rc(const std::string& printed) {
  std::set<size_t> for_puts, for_rma, by_rc;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    size_t index = 0;
    const size_t lane = line.find("lane[");
    const size_t put = line.find("put[");
    if (put != std::string::npos && std::sscanf(line.c_str() + put, "put[%zu]", &index) == 1) {
      for_puts.insert(index);
    } else if (lane != std::string::npos &&
               std::sscanf(line.c_str() + lane, "lane[%zu]", &index) == 1) {
      if (line.find(" rma") != std::string::npos) for_rma.insert(index);
      if (line.find(":rc_") != std::string::npos) by_rc.insert(index);
    }
  }
  const std::set<size_t>& used = for_puts.empty() ? for_rma : for_puts;
  return !used.empty() && std::includes(by_rc.begin(), by_rc.end(), used.begin(), used.end());
}

Status status_of(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK) return {};
  return {code_of(status), what + ": " + ucs_status_string(status)};
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(uint64_t features, const UcxOptions& options) {
  tame_library();
  std::string described;
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return status_of(status, "reading UCX's configuration (UCX_* variables)");
  for (const auto& [key, value] : options) {
    described += (described.empty() ? "" : " ") + key + "=" + value;
    status = ucp_config_modify(config, key.c_str(), value.c_str());
    if (status != UCS_OK) {
      ucp_config_release(config);
      return status_of(status, "UCX option " + key + "=" + value);
    }
  }
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = features;
  status = ucp_init(&params, config, &worker->context_);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return status_of(status, "UCX has no usable device for " + described +
                                 " (`ucx_info -d` lists what there is)");
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  status = ucp_worker_create(worker->context_, &worker_params, &worker->worker_);
  if (status != UCS_OK) return status_of(status, "creating a UCX worker for " + described);
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

Result<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return status_of(status, "address of a UCX worker");
  const auto* begin = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> bytes(begin, begin + length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

Result<std::unique_ptr<UcxMemory>> UcxMemory::allocate(UcxWorker& worker, size_t bytes,
                                                       bool shared) {
  const uint64_t memory = available_memory_bytes();
  if (memory != 0 && bytes > memory) return too_little("memory", bytes, memory);
  const uint64_t shm = available_shared_memory_bytes();
  if (shared && bytes > shm) return too_little("shared memory (/dev/shm)", bytes, shm);
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  ucp_mem_h handle = nullptr;
  ucs_status_t status = ucp_mem_map(worker.context(), &params, &handle);
  if (status != UCS_OK) {
    return status_of(status, "allocating a segment of " + std::to_string(bytes) + " bytes" +
                                 (shared ? "" : kLockedMemoryHint));
  }
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  status = ucp_mem_query(handle, &attributes);
  auto* data = static_cast<std::byte*>(attributes.address);
  std::unique_ptr<UcxMemory> result(new UcxMemory(&worker, handle, data, bytes));
  if (status != UCS_OK) return status_of(status, "address of the segment");
  Status populated = populate(data, bytes);
  if (!populated.ok()) return populated;
  return result;
}

Result<std::unique_ptr<UcxMemory>> UcxMemory::map(UcxWorker& worker, std::byte* data,
                                                  size_t bytes) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = data;
  params.length = bytes;
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = ucp_mem_map(worker.context(), &params, &handle);
  if (status != UCS_OK) {
    return status_of(
        status, "registering a segment of " + std::to_string(bytes) + " bytes" + kLockedMemoryHint);
  }
  return std::unique_ptr<UcxMemory>(new UcxMemory(&worker, handle, data, bytes));
}

Result<std::unique_ptr<UcxMemory>> UcxMemory::plain(size_t bytes) {
  const uint64_t memory = available_memory_bytes();
  if (memory != 0 && bytes > memory) return too_little("memory", bytes, memory);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return too_little("memory", bytes, memory);
  auto* data = static_cast<std::byte*>(mapped);
  auto result = unregistered(data, bytes);
  result->owned_ = true;
  Status populated = populate(data, bytes);
  if (!populated.ok()) return populated;
  return result;
}

std::unique_ptr<UcxMemory> UcxMemory::unregistered(std::byte* data, size_t bytes) {
  return std::unique_ptr<UcxMemory>(new UcxMemory(nullptr, nullptr, data, bytes));
}

UcxMemory::~UcxMemory() {
  if (handle_ != nullptr) ucp_mem_unmap(worker_->context(), handle_);
  if (owned_) ::munmap(data_, bytes_);
}

Result<std::vector<std::byte>> UcxMemory::remote_key() const {
  void* key = nullptr;
  size_t length = 0;
  const ucs_status_t status = ucp_rkey_pack(worker_->context(), handle_, &key, &length);
  if (status != UCS_OK) return status_of(status, "remote key of the segment");
  const auto* begin = static_cast<const std::byte*>(key);
  std::vector<std::byte> bytes(begin, begin + length);
  ucp_rkey_buffer_release(key);
  return bytes;
}

}  // namespace crossdock
