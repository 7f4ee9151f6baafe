#include <array>

#include "crossdock/sys/wire.h"
#include "crossdock/transfer/transfer.h"

namespace crossdock {
namespace {

constexpr uint32_t kDescriptorVersion = 2;
// Far above what is ever sent (some hundred bytes); a descriptor comes from another machine.
constexpr size_t kFieldBytesMax = 16 * 1024;
constexpr size_t kSocketPathBytesMax = 100;

}  // namespace

std::string_view name(TransportKind kind) {
  switch (kind) {
    case TransportKind::kLoopback: return "loopback";
    case TransportKind::kSharedMemory: return "shm";
    case TransportKind::kTcp: return "tcp";
    case TransportKind::kRc: return "rc";
  }
  return "unknown";
}

std::string_view describe(SharedMemory shared_memory) {
  switch (shared_memory) {
    case SharedMemory::kUsed: return "shared memory is used";
    case SharedMemory::kNotOffered: return "shared memory is not offered by both sides";
    case SharedMemory::kOtherHost:
      return "the peer is on another host or in another PID or IPC namespace";
    case SharedMemory::kProcessUnseen:
      return "the peer's socket cannot be reached: it is in another network namespace";
    case SharedMemory::kNotMapped: return "the peer's segment cannot be mapped here";
    case SharedMemory::kNotMappedByPeer: return "the peer cannot map our segment";
  }
  return "unknown";
}

std::vector<std::byte> encode(const EndpointDescriptor& descriptor) {
  WireWriter writer;
  writer.put(kDescriptorVersion);
  writer.put(descriptor.epoch);
  writer.put(descriptor.host_id);
  writer.put(descriptor.process_id);
  writer.put(descriptor.socket_path);
  writer.put(descriptor.worker_address);
  writer.put(descriptor.remote_key);
  writer.put(descriptor.segment_address);
  writer.put(descriptor.segment_bytes);
  writer.put(descriptor.transports);
  writer.put(descriptor.staged);
  return writer.take();
}

Result<EndpointDescriptor> decode_endpoint(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  const auto version = reader.get<uint32_t>();
  if (!reader.failed() && version != kDescriptorVersion) {
    return Status(StatusCode::kFailedPrecondition,
                  "endpoint descriptor has version " + std::to_string(version) + ", expected " +
                      std::to_string(kDescriptorVersion) + "; run one release on both sides");
  }
  EndpointDescriptor descriptor;
  descriptor.epoch = reader.get<uint64_t>();
  descriptor.host_id = reader.get_string();
  descriptor.process_id = reader.get<int32_t>();
  descriptor.socket_path = reader.get_string();
  descriptor.worker_address = reader.get_vector<std::byte>();
  descriptor.remote_key = reader.get_vector<std::byte>();
  descriptor.segment_address = reader.get<uint64_t>();
  descriptor.segment_bytes = reader.get<uint64_t>();
  descriptor.transports = reader.get_string();
  descriptor.staged = reader.get_string();
  if (!reader.done()) {
    return Status(StatusCode::kInvalidArgument, "endpoint descriptor of " +
                                                    std::to_string(bytes.size()) +
                                                    " bytes is cut short or has bytes left over");
  }
  const std::array sizes = {descriptor.host_id.size(), descriptor.worker_address.size(),
                            descriptor.remote_key.size(), descriptor.transports.size(),
                            descriptor.staged.size()};
  for (const size_t size : sizes) {
    if (size > kFieldBytesMax) {
      return Status(StatusCode::kInvalidArgument,
                    "a field of the endpoint descriptor has " + std::to_string(size) +
                        " bytes, at most " + std::to_string(kFieldBytesMax) + " are allowed");
    }
  }
  if (descriptor.socket_path.size() > kSocketPathBytesMax ||
      descriptor.segment_address + descriptor.segment_bytes < descriptor.segment_address) {
    return Status(StatusCode::kInvalidArgument, "endpoint descriptor: socket_path is over " +
                                                    std::to_string(kSocketPathBytesMax) +
                                                    " bytes, or the segment wraps around");
  }
  return descriptor;
}

}  // namespace crossdock
