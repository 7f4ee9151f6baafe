// What this transport puts into the opaque fields of an EndpointDescriptor.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <span>
#include <string>
#include <vector>

#include "crossdock/sys/status.h"

namespace crossdock {

// EndpointDescriptor::worker_address.
struct UcxAddress {
  std::vector<std::byte> listener;       // a sockaddr, where connections are accepted
  std::vector<std::byte> shared_memory;  // UCX's address of the shared-memory worker, or empty
};
std::vector<std::byte> encode(const UcxAddress& address);
Result<UcxAddress> decode_ucx_address(std::span<const std::byte> bytes);

// EndpointDescriptor::remote_key: the segment as each worker knows it.
struct UcxRemoteKeys {
  std::vector<std::byte> network;
  std::vector<std::byte> shared_memory;  // or empty
};
std::vector<std::byte> encode(const UcxRemoteKeys& keys);
Result<UcxRemoteKeys> decode_ucx_remote_keys(std::span<const std::byte> bytes);

// The address to listen on: of the interface named, or of the first that is up and not loopback,
// or of loopback. NOT_FOUND names the interfaces there are.
Result<std::vector<std::byte>> listen_address(const std::string& interface, uint16_t port);

// Names of the interfaces that are up and have an IPv4 address, comma-separated.
std::string up_interfaces();

}  // namespace crossdock
