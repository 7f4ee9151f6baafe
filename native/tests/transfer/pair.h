// Two transports in one thread, driven in turn, and the events each has seen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

inline constexpr auto kTestWaitMax = std::chrono::seconds(60);

inline uint64_t random_bits() {
  static std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Ports of RDMA devices that reach each other, as UCX names them, and the index of their GIDs:
// "rxe0:1 rxe1:1 1". Where none are given, nothing runs over rc.
inline constexpr char kRdmaVariable[] = "CROSSDOCK_TEST_RDMA";

inline bool over_rdma() { return std::getenv(kRdmaVariable) != nullptr; }

inline std::vector<std::string> transports_to_test() {
  if (over_rdma()) return {"rc"};
  return {"shm", "tcp"};
}

// Emulated devices move some ten megabytes a second, so less is moved over them.
inline const uint64_t kTestMiB = over_rdma() ? 1u << 16 : 1u << 20;

// `port`: which of the two the transport uses over rc.
inline TransportConfig test_config(const std::string& transport, uint64_t segment_bytes,
                                   size_t port = 0) {
  TransportConfig config;
  config.transport = transport;
  config.segment_bytes = segment_bytes;
  config.bind_interface = "lo";
  config.handshake_timeout_ms = 120'000;  // only a hang lasts as long
  if (transport == "rc") {
    std::array<std::string, 3> words;
    std::istringstream text(std::getenv(kRdmaVariable));
    text >> words[0] >> words[1] >> words[2];
    config.rdma_device = words[port];
    config.gid_index = words[2];
  }
  return config;
}

// One side: a transport and everything it has reported.
struct Side {
  std::unique_ptr<Transport> transport;
  std::vector<TransferEvent> events;

  void open(const TransportConfig& config, uint64_t epoch) {
    auto created = create_ucx_transport(config, epoch);
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    transport = std::move(created).value();
  }
  void poll() { transport->poll(events); }

  template <typename Event>
  const Event* find(const std::function<bool(const Event&)>& wanted) const {
    for (const TransferEvent& event : events) {
      if (const auto* concrete = std::get_if<Event>(&event); concrete && wanted(*concrete)) {
        return concrete;
      }
    }
    return nullptr;
  }
  template <typename Event>
  size_t count() const {
    size_t number = 0;
    for (const TransferEvent& event : events) number += std::holds_alternative<Event>(event);
    return number;
  }
  const OperationDone* done(OperationId operation) const {
    return find<OperationDone>([&](const auto& event) { return event.operation == operation; });
  }
  template <typename Event>
  const Event* of_peer(PeerId peer) const {
    return find<Event>([&](const auto& event) { return event.peer == peer; });
  }
  std::string why_broken(PeerId peer) const {
    const auto* broken = of_peer<PeerBroken>(peer);
    return broken == nullptr ? "not broken" : broken->status.to_string();
  }
  std::vector<std::string> messages() const {
    std::vector<std::string> texts;
    for (const TransferEvent& event : events) {
      if (const auto* arrived = std::get_if<MessageArrived>(&event)) {
        const auto& bytes = arrived->message;
        texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
    }
    return texts;
  }
};

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

// Fills a segment with bytes that depend on the place and on the seed: by whole pages, since the
// sanitizers make loops over bytes slow.
inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  constexpr size_t kPageBytes = 4096;
  std::array<std::byte, kPageBytes> page;
  for (size_t i = 0; i < kPageBytes; ++i) page[i] = std::byte((seed + i * 7) | 1);
  for (size_t offset = 0; offset < bytes.size(); offset += kPageBytes) {
    const uint64_t stamp = (offset << 16) ^ seed;
    std::memcpy(page.data(), &stamp, sizeof stamp);
    std::memcpy(bytes.data() + offset, page.data(), std::min(kPageBytes, bytes.size() - offset));
  }
}

inline bool all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

inline void clear(std::span<std::byte> bytes) { std::memset(bytes.data(), 0, bytes.size()); }

struct Pair {
  Side a;
  Side b;

  // Polls both until the condition holds; false when it did not within the bound.
  bool until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      if (a.transport) a.poll();
      if (b.transport) b.poll();
    }
    return true;
  }

  Status connect_side(Side& from, Side& to, PeerId peer, uint64_t incarnation) {
    auto remote = decode_endpoint(encode(to.transport->descriptor()));
    if (!remote.ok()) return remote.status();
    return from.transport->post(Connect{peer, incarnation, std::move(remote).value()});
  }

  // Connects both sides under one peer id each and waits until both are ready.
  void connect(PeerId peer, uint64_t incarnation) {
    ASSERT_TRUE(connect_side(a, b, peer, incarnation).ok());
    ASSERT_TRUE(connect_side(b, a, peer, incarnation).ok());
    ASSERT_TRUE(until([&] {
      return a.of_peer<PeerReady>(peer) != nullptr && b.of_peer<PeerReady>(peer) != nullptr;
    })) << "not ready; A: "
        << a.why_broken(peer) << "; B: " << b.why_broken(peer);
  }
};

}  // namespace crossdock
