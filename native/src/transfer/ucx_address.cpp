#include "ucx_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <cstring>
#include <memory>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

std::vector<std::byte> encode_pair(const std::vector<std::byte>& first,
                                   const std::vector<std::byte>& second) {
  WireWriter writer;
  writer.put(first);
  writer.put(second);
  return writer.take();
}

// Lower is better; negative: not to be used when no interface was named.
int preference(const ifaddrs& entry) {
  const bool loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  const bool ipv6 = entry.ifa_addr->sa_family == AF_INET6;
  if (ipv6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) return -1;
  }
  return (loopback ? 2 : 0) + (ipv6 ? 1 : 0);
}

std::vector<std::byte> with_port(const sockaddr* address, uint16_t port) {
  sockaddr_storage storage{};
  size_t length = 0;
  if (address->sa_family == AF_INET) {
    length = sizeof(sockaddr_in);
    std::memcpy(&storage, address, length);
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  } else {
    length = sizeof(sockaddr_in6);
    std::memcpy(&storage, address, length);
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  }
  const auto* begin = reinterpret_cast<const std::byte*>(&storage);
  return {begin, begin + length};
}

using Interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

Interfaces list_interfaces() {
  ifaddrs* list = nullptr;
  return {::getifaddrs(&list) == 0 ? list : nullptr, ::freeifaddrs};
}

std::string up_interfaces(const ifaddrs* list) {
  std::string names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family != AF_INET) continue;
    names += (names.empty() ? "" : ",") + std::string(entry->ifa_name);
  }
  return names;
}

}  // namespace

std::vector<std::byte> encode(const UcxAddress& address) {
  return encode_pair(address.listener, address.shared_memory);
}

Result<UcxAddress> decode_ucx_address(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  UcxAddress address;
  address.listener = reader.get_vector<std::byte>();
  address.shared_memory = reader.get_vector<std::byte>();
  sockaddr_storage storage{};
  const size_t length = address.listener.size();
  bool valid = reader.done() && length != 0 && length <= sizeof storage;
  if (valid) {
    std::memcpy(&storage, address.listener.data(), length);
    valid = (storage.ss_family == AF_INET && length == sizeof(sockaddr_in)) ||
            (storage.ss_family == AF_INET6 && length == sizeof(sockaddr_in6));
  }
  if (valid) return address;
  return Status(StatusCode::kInvalidArgument, "worker_address of the endpoint does not parse");
}

std::vector<std::byte> encode(const UcxRemoteKeys& keys) {
  return encode_pair(keys.network, keys.shared_memory);
}

Result<UcxRemoteKeys> decode_ucx_remote_keys(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  UcxRemoteKeys keys;
  keys.network = reader.get_vector<std::byte>();
  keys.shared_memory = reader.get_vector<std::byte>();
  if (reader.done()) return keys;
  return Status(StatusCode::kInvalidArgument, "remote_key of the endpoint does not parse");
}

Result<std::vector<std::byte>> listen_address(const std::string& interface, uint16_t port) {
  const Interfaces list = list_interfaces();
  const ifaddrs* best = nullptr;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (!interface.empty() && interface != entry->ifa_name) continue;
    const int rank = preference(*entry);
    if (rank >= 0 && (best == nullptr || rank < preference(*best))) best = entry;
  }
  if (best != nullptr) return with_port(best->ifa_addr, port);
  return Status(StatusCode::kNotFound,
                "bind_interface \"" + interface +
                    "\" is not up or has no address; interfaces: " + up_interfaces(list.get()));
}

std::string up_interfaces() { return up_interfaces(list_interfaces().get()); }

}  // namespace crossdock
