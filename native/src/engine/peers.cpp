#include "crossdock/engine/peers.h"

#include <algorithm>
#include <cstring>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

Result<KvLayout> decode_layout(const std::string& encoded) {
  WireReader in(std::as_bytes(std::span(encoded)));
  KvLayout layout;
  const uint32_t version = in.get<uint32_t>();
  if (version != kKvLayoutVersion) {
    return Status(StatusCode::kFailedPrecondition, "the peer's KV layout has version " +
                                                       std::to_string(version) + ", ours has " +
                                                       std::to_string(kKvLayoutVersion));
  }
  const auto model = in.get_raw(layout.model.size());
  if (!in.failed()) std::memcpy(layout.model.data(), model.data(), model.size());
  layout.kind = in.get<KvKind>();
  layout.num_layers = in.get<uint32_t>();
  layout.num_kv_heads = in.get<uint32_t>();
  layout.head_dim = in.get<uint32_t>();
  layout.rope_dim = in.get<uint32_t>();
  layout.dtype = in.get<DType>();
  layout.tensor_parallel_rank = in.get<uint32_t>();
  layout.tensor_parallel_size = in.get<uint32_t>();
  if (!in.done()) return Status(StatusCode::kInvalidArgument, "layout: malformed");
  return layout;
}

}  // namespace

std::string encode_layout(const KvLayout& layout) {
  WireWriter out;
  out.put(kKvLayoutVersion);
  out.put_raw(std::as_bytes(std::span(layout.model)));
  out.put(layout.kind);
  out.put(layout.num_layers);
  out.put(layout.num_kv_heads);
  out.put(layout.head_dim);
  out.put(layout.rope_dim);
  out.put(layout.dtype);
  out.put(layout.tensor_parallel_rank);
  out.put(layout.tensor_parallel_size);
  const auto bytes = out.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Status compare_layout(const KvLayout& ours, const std::string& encoded) {
  auto theirs = decode_layout(encoded);
  if (!theirs.ok()) return theirs.status();
  if (theirs.value().fingerprint() == ours.fingerprint()) return {};
  return {StatusCode::kFailedPrecondition, "KV layouts differ: ours is " + ours.to_string() +
                                               ", the peer's is " + theirs.value().to_string()};
}

Result<Connect> Peers::add(const link::ConnectPeer& command, const KvLayout& ours) {
  if (peers_.contains(command.peer_id)) {
    return Status(StatusCode::kAlreadyExists,
                  "peer_id " + std::to_string(command.peer_id) + " is already connected");
  }
  Peer peer{.id = command.peer_id,
            .epoch = command.epoch,
            .incarnation = command.incarnation,
            .store = command.store};
  if (command.mac_key.size() != peer.key.size()) {
    return Status(StatusCode::kInvalidArgument,
                  "mac_key: must hold 32 bytes, holds " + std::to_string(command.mac_key.size()));
  }
  std::memcpy(peer.key.data(), command.mac_key.data(), peer.key.size());
  if (!command.store) {
    Status status = compare_layout(ours, command.layout);
    if (!status.ok()) return status;
  }
  auto descriptor = decode_endpoint(std::as_bytes(std::span(command.descriptor)));
  if (!descriptor.ok()) return descriptor.status();
  Connect connect{
      .peer = peer.id, .incarnation = peer.incarnation, .remote = std::move(descriptor).value()};
  peers_.emplace(peer.id, peer);
  return connect;
}

Peer* Peers::find(PeerId id) {
  auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : &it->second;
}

const Peer* Peers::store() const {
  for (const auto& [id, peer] : peers_) {
    if (peer.store && peer.state == PeerState::kReady) return &peer;
  }
  return nullptr;
}

}  // namespace crossdock
