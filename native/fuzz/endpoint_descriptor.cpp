// Feeds decode_endpoint and what it carries random bytes and mutations of a real descriptor. A
// descriptor either parses and encodes to the same bytes again, or is refused; nothing else may
// happen (run it under ASan and UBSan). Usage: transfer_descriptor_fuzz [rounds] [seed]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "../src/transfer/ucx_address.h"
#include "crossdock/transfer/transfer.h"

namespace crossdock {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, size_t bytes_max) {
  Bytes bytes(random() % (bytes_max + 1));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes real_descriptor(std::mt19937_64& random) {
  EndpointDescriptor descriptor;
  descriptor.epoch = random();
  descriptor.host_id = "boot pid:[4026531836] ipc:[4026531839]";
  descriptor.process_id = static_cast<int32_t>(random() % 100'000);
  descriptor.socket_path = "crossdock-4711-1";
  descriptor.worker_address =
      encode(UcxAddress{random_bytes(random, 40), random_bytes(random, 90)});
  descriptor.remote_key = encode(UcxRemoteKeys{random_bytes(random, 40), random_bytes(random, 90)});
  descriptor.segment_address = random() >> 16;
  descriptor.segment_bytes = random() >> 24;
  descriptor.transports = "shm,tcp";
  return encode(descriptor);
}

void mutate(Bytes& bytes, std::mt19937_64& random) {
  for (uint64_t i = random() % 6; i > 0 && !bytes.empty(); --i) {
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
  }
  if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 9));
}

bool round_trips(const Bytes& bytes) {
  const auto descriptor = decode_endpoint(bytes);
  if (!descriptor.ok()) return true;
  (void)decode_ucx_address(descriptor.value().worker_address);
  (void)decode_ucx_remote_keys(descriptor.value().remote_key);
  return encode(descriptor.value()) == bytes;
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 100'000;
  std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  for (long round = 0; round < rounds; ++round) {
    crossdock::Bytes bytes = random() % 4 == 0 ? crossdock::random_bytes(random, 400)
                                               : crossdock::real_descriptor(random);
    crossdock::mutate(bytes, random);
    if (crossdock::round_trips(bytes)) continue;
    std::fprintf(stderr, "round %ld: a descriptor came back as other bytes\n", round);
    return 1;
  }
  std::printf("%ld rounds\n", rounds);
}
