#include "crossdock/engine/peers.h"

#include <algorithm>
#include <cstring>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

Result<CacheFormat> decode_format(const std::string& encoded) {
  WireReader in(std::as_bytes(std::span(encoded)));
  CacheFormat format;
  KvLayout& layout = format.layout;
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
  format.numerics_id = in.get_string();
  const bool known = layout.dtype <= DType::kFp8DsMla && layout.kind <= KvKind::kMla;
  if (!in.done() || !known) return Status(StatusCode::kInvalidArgument, "layout: malformed");
  Status status = layout.validate();
  if (!status.ok()) return Status(status.code(), "layout: " + status.message());
  return format;
}

// The parts of a numerics id but the one that the layout has as well.
std::string without_kv_dtype(const std::string& numerics_id) {
  const size_t begin = numerics_id.find(";kv=");
  if (begin == std::string::npos) return numerics_id;
  const size_t end = numerics_id.find(';', begin + 1);
  return numerics_id.substr(0, begin) +
         (end == std::string::npos ? std::string() : numerics_id.substr(end));
}

}  // namespace

std::string encode(const CacheFormat& format) {
  const KvLayout& layout = format.layout;
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
  out.put(std::string_view(format.numerics_id));
  const auto bytes = out.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<CacheFormat> check_format(const CacheFormat& ours, const std::string& encoded) {
  auto theirs = decode_format(encoded);
  if (!theirs.ok()) return theirs.status();
  const CacheFormat& peer = theirs.value();
  if (!ours.layout.converts_from(peer.layout)) {
    const auto size = [](const KvLayout& layout) {
      return std::to_string(layout.tensor_parallel_size);
    };
    const bool sizes_differ = ours.layout.tensor_parallel_size != peer.layout.tensor_parallel_size;
    return Status(StatusCode::kFailedPrecondition,
                  (sizes_differ ? "tensor_parallel_size must be " + size(ours.layout) +
                                      " on both sides, the peer's is " + size(peer.layout) + ": "
                                : std::string()) +
                      "KV layouts differ: ours is " + ours.layout.to_string() + ", the peer's is " +
                      peer.layout.to_string());
  }
  if (without_kv_dtype(ours.numerics_id) != without_kv_dtype(peer.numerics_id)) {
    return Status(StatusCode::kFailedPrecondition,
                  "the engines compute differently: ours " + ours.numerics_id + ", the peer's " +
                      peer.numerics_id + "; only the KV dtype may differ");
  }
  return theirs;
}

Result<Connect> Peers::add(const link::ConnectPeer& command, const CacheFormat& ours) {
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
    auto format = check_format(ours, command.layout);
    if (!format.ok()) return format.status();
    peer.format = std::move(format).value();
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

const Peer* Peers::of_epoch(uint64_t epoch) const {
  for (const auto& [id, peer] : peers_) {
    if (!peer.store && peer.epoch == epoch && peer.state == PeerState::kReady) return &peer;
  }
  return nullptr;
}

const Peer* Peers::store() const {
  for (const auto& [id, peer] : peers_) {
    if (peer.store && peer.state == PeerState::kReady) return &peer;
  }
  return nullptr;
}

}  // namespace crossdock
