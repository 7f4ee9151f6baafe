#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <random>

#include "../../src/transfer/ucx_address.h"
#include "crossdock/sys/wire.h"
#include "crossdock/transfer/transfer.h"

namespace crossdock {
namespace {

EndpointDescriptor example() {
  EndpointDescriptor descriptor;
  descriptor.epoch = 0x1234'5678'9abc'def0;
  descriptor.host_id = "boot pid:[1] ipc:[2]";
  descriptor.process_id = 4711;
  descriptor.socket_path = "crossdock-4711-1";
  descriptor.worker_address = {std::byte{1}, std::byte{2}};
  descriptor.remote_key = {std::byte{3}};
  descriptor.segment_address = 0x7f00'0000'0000;
  descriptor.segment_bytes = 1u << 30;
  descriptor.transports = "shm,tcp";
  descriptor.staged = "too little of it";
  return descriptor;
}

TEST(EndpointDescriptor, ComesBackFromItsBytes) {
  const auto result = decode_endpoint(encode(example()));
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const EndpointDescriptor& back = result.value();
  EXPECT_EQ(back.epoch, example().epoch);
  EXPECT_EQ(back.host_id, example().host_id);
  EXPECT_EQ(back.process_id, example().process_id);
  EXPECT_EQ(back.socket_path, example().socket_path);
  EXPECT_EQ(back.worker_address, example().worker_address);
  EXPECT_EQ(back.remote_key, example().remote_key);
  EXPECT_EQ(back.segment_address, example().segment_address);
  EXPECT_EQ(back.segment_bytes, example().segment_bytes);
  EXPECT_EQ(back.transports, example().transports);
  EXPECT_EQ(back.staged, example().staged);
}

TEST(EndpointDescriptor, EveryCutAndEveryExtraByteIsRefused) {
  std::vector<std::byte> bytes = encode(example());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_endpoint(std::span(bytes).first(length)).ok()) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_endpoint(bytes).ok());
}

TEST(EndpointDescriptor, AnotherVersionIsNamed) {
  std::vector<std::byte> bytes = encode(example());
  bytes[0] = std::byte{99};
  const auto result = decode_endpoint(bytes);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(result.status().message().find("99"), std::string::npos);
}

TEST(EndpointDescriptor, FieldsBeyondTheirBoundsAreRefused) {
  EndpointDescriptor descriptor = example();
  descriptor.host_id = std::string(20'000, 'x');
  EXPECT_FALSE(decode_endpoint(encode(descriptor)).ok());
  descriptor = example();
  descriptor.socket_path = std::string(101, 'x');
  EXPECT_FALSE(decode_endpoint(encode(descriptor)).ok());
  descriptor = example();
  descriptor.segment_bytes = UINT64_MAX;
  EXPECT_FALSE(decode_endpoint(encode(descriptor)).ok());
}

TEST(EndpointDescriptor, DamagedBytesNeverCrash) {
  const std::vector<std::byte> good = encode(example());
  std::mt19937 random(3);
  size_t num_accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = good;
    for (uint32_t i = 0; i <= random() % 4; ++i)
      bytes[random() % bytes.size()] = std::byte(random() & 0xff);
    const auto result = decode_endpoint(bytes);
    num_accepted += result.ok();
    if (result.ok()) (void)decode_ucx_address(result.value().worker_address);
  }
  EXPECT_GT(num_accepted, 0u);  // a changed epoch is still a descriptor
}

TEST(UcxAddress, OnlyWholeSocketAddressesAreAccepted) {
  UcxAddress address;
  sockaddr_in ipv4{};
  ipv4.sin_family = AF_INET;
  address.listener.resize(sizeof ipv4);
  std::memcpy(address.listener.data(), &ipv4, sizeof ipv4);
  EXPECT_TRUE(decode_ucx_address(encode(address)).ok());
  address.listener.pop_back();
  EXPECT_FALSE(decode_ucx_address(encode(address)).ok());
  address.listener.assign(4'096, std::byte{2});
  EXPECT_FALSE(decode_ucx_address(encode(address)).ok());
  EXPECT_FALSE(decode_ucx_address({}).ok());
}

TEST(UcxAddress, ListensWhereItIsTold) {
  const auto loopback = listen_address("lo", 80);
  ASSERT_TRUE(loopback.ok()) << loopback.status().to_string();
  sockaddr_in address{};
  ASSERT_EQ(loopback.value().size(), sizeof address);
  std::memcpy(&address, loopback.value().data(), sizeof address);
  EXPECT_EQ(address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(address.sin_port, htons(80));
  EXPECT_TRUE(listen_address("", 0).ok());
  EXPECT_EQ(listen_address("nosuch0", 0).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace crossdock
