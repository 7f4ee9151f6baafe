#include "crossdock/sys/shared_memory.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace crossdock {
namespace {

TEST(MappedMemory, TwoMappingsShareTheirBytes) {
  auto first = MappedMemory::create("shared-memory-test", 10'000);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  auto second = MappedMemory::map(first.value().fd(), 10'000);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  first.value().data()[9'999] = std::byte{42};
  EXPECT_EQ(second.value().data()[9'999], std::byte{42});
  EXPECT_EQ(first.value().data()[0], std::byte{0});
}

TEST(MappedMemory, AMappingOutlivesItsCreator) {
  auto first = MappedMemory::create("shared-memory-test", 4096);
  ASSERT_TRUE(first.ok());
  auto second = MappedMemory::map(first.value().fd(), 4096);
  ASSERT_TRUE(second.ok());
  first.value().data()[7] = std::byte{7};
  {
    MappedMemory gone = std::move(first).value();
  }
  EXPECT_EQ(second.value().data()[7], std::byte{7});
}

TEST(MappedMemory, MoreThanTheMachineHasIsAnErrorThatNamesBothSizes) {
  const auto result = MappedMemory::create("shared-memory-test", size_t{1} << 46);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(result.status().message().find("70368744177664"), std::string::npos);
  EXPECT_NE(result.status().message().find("are available"), std::string::npos);
}

TEST(MappedMemory, ZeroBytesAndBadDescriptorsAreRefused) {
  EXPECT_EQ(MappedMemory::create("shared-memory-test", 0).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedMemory::map(-1, 4096).status().code(), StatusCode::kInvalidArgument);
}

TEST(MappedMemory, AFileThatIsSmallerOrCouldShrinkIsRefused) {
  auto memory = MappedMemory::create("shared-memory-test", 4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(MappedMemory::map(memory.value().fd(), 8192).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_NE(::ftruncate(memory.value().fd(), 0), 0);  // the seal holds

  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(MappedMemory::map(unsealed.get(), 4096).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(AvailableMemory, IsReadFromTheMachine) {
  EXPECT_GT(available_memory_bytes(), 0u);
  EXPECT_LT(available_memory_bytes(), uint64_t{1} << 50);
}

TEST(EventFd, IsReadableFromSignalToDrain) {
  auto event = EventFd::create();
  ASSERT_TRUE(event.ok());
  auto readable = [&] {
    pollfd fd{event.value().fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  event.value().drain();  // does not block when there is nothing
  event.value().signal();
  event.value().signal();
  EXPECT_TRUE(readable());
  event.value().drain();
  EXPECT_FALSE(readable());
}

}  // namespace
}  // namespace crossdock
