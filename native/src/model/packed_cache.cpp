#include "packed_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

using kernels::WeightFormat;

constexpr std::string_view kMagic = "crossdock.packed.v1";
constexpr size_t kHeaderBytes = 4096;  // the arena behind it begins on a page
constexpr size_t kChunkBytes = size_t{1} << 20;
// Some fifty models of the size of SmolLM2 in every format, or one of 30 billion weights.
constexpr uint64_t kCacheBytesMax = uint64_t{32} << 30;

using Checksum = std::array<uint64_t, 2>;

// Of chunks, so that several threads share the work; each is first copied from `from`, if given.
Checksum checksum_of(std::byte* arena, size_t size, const std::byte* from, ThreadPool& pool) {
  std::vector<XXH128_hash_t> hashes((size + kChunkBytes - 1) / kChunkBytes);
  pool.parallel_for(hashes.size(), 1, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i) {
      const size_t first = i * kChunkBytes, count = std::min(kChunkBytes, size - first);
      if (from != nullptr) std::memcpy(arena + first, from + first, count);
      hashes[i] = XXH3_128bits(arena + first, count);
    }
  });
  const auto hash = XXH3_128bits(hashes.data(), hashes.size() * sizeof(hashes[0]));
  return {hash.low64, hash.high64};
}

// What the kernels of this program make of some weights: when a format's order or the way it
// quantises changes, files of before are of no use, and nobody has to remember a version.
uint64_t packing_of(WeightFormat format) {
  constexpr uint32_t kDepth = 144;  // a whole stretch and a part, whole groups and a part
  std::vector<float> weights(size_t{kernels::kPanelOutputs} * kDepth);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::ldexp(static_cast<float>(i * 7919 % 4093) - 2000.0f, -12);
  }
  const float* rows[kernels::kPanelOutputs];
  for (uint32_t lane = 0; lane < kernels::kPanelOutputs; ++lane) {
    rows[lane] = weights.data() + size_t{lane} * kDepth;
  }
  std::vector<std::byte> panel(kernels::panel_bytes(format, kDepth));
  kernels::pack_panel(format, rows, kDepth, panel.data());
  return XXH3_64bits(panel.data(), panel.size());
}

std::vector<std::byte> identity_of(const Fingerprint& model, const std::vector<MatrixPlan>& plans,
                                   size_t arena_bytes) {
  WireWriter matrices;
  for (const auto& plan : plans) {
    matrices.put(plan.to->format);
    matrices.put(plan.to->depth);
    matrices.put(plan.num_panels());
    matrices.put(plan.interleaved);
    matrices.put(uint64_t{plan.offset});
  }
  WireWriter identity;
  identity.put(kMagic);
  identity.put(dtype_name(plans));
  identity.put_raw(std::as_bytes(std::span(model)));
  identity.put(uint64_t{arena_bytes});
  identity.put(uint64_t{XXH3_64bits(matrices.bytes().data(), matrices.bytes().size())});
  for (const auto format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                            WeightFormat::kInt8, WeightFormat::kInt4}) {
    identity.put(packing_of(format));
  }
  return identity.take();
}

std::string name_of(const Fingerprint& model, std::string_view dtype) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (const uint8_t byte : model) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name.append("-").append(dtype).append(".packed");
}

}  // namespace

PackedCache::PackedCache(const std::string& directory, const Fingerprint& model,
                         const std::vector<MatrixPlan>& plans, size_t arena_bytes)
    : files_(directory, kCacheBytesMax),
      arena_bytes_(arena_bytes),
      name_(name_of(model, dtype_name(plans))),
      identity_(identity_of(model, plans, arena_bytes)) {}

Status PackedCache::read(std::byte* arena, ThreadPool& pool) const {
  auto file = files_.open(name_);
  if (!file.ok()) return file.status();
  const auto bytes = file.value().bytes();
  const auto damaged = [&](const std::string& what) {
    return Status(StatusCode::kDataLoss, path() + ": " + what + "; it is made again");
  };
  if (bytes.size() != kHeaderBytes + arena_bytes_) {
    return damaged("has " + std::to_string(bytes.size()) + " bytes, not " +
                   std::to_string(kHeaderBytes + arena_bytes_));
  }
  if (!std::ranges::equal(identity_, bytes.first(identity_.size()))) {
    return damaged("is of another version");
  }
  Checksum expected;
  std::memcpy(&expected, bytes.data() + identity_.size(), sizeof(expected));
  const std::byte* from = bytes.data() + kHeaderBytes;
  if (checksum_of(arena, arena_bytes_, from, pool) != expected) {
    return damaged("has a wrong checksum");
  }
  return {};
}

Status PackedCache::write(std::byte* arena, ThreadPool& pool) const {
  const Checksum checksum = checksum_of(arena, arena_bytes_, nullptr, pool);
  std::vector<std::byte> header(kHeaderBytes);
  std::ranges::copy(identity_, header.begin());
  std::memcpy(header.data() + identity_.size(), &checksum, sizeof(checksum));
  const std::span<const std::byte> parts[] = {header, {arena, arena_bytes_}};
  return files_.write(name_, parts);
}

}  // namespace crossdock
