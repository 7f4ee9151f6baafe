#include "crossdock/sys/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace crossdock {
namespace {

constexpr int kPollTimeoutMs = 30'000;

std::string unique_name(const char* subject) {
  return std::string("crossdock-test-") + subject + "-" + std::to_string(::getpid());
}

bool readable(int fd, int timeout_ms) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, timeout_ms) == 1;
}

TEST(HostIdentity, IsStableAndNotEmpty) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_NE(host_identity().find("pid:["), std::string::npos);
}

TEST(Pidfd, TellsWhenTheProcessEnds) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  auto pidfd = open_pidfd(child);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status().to_string();
  EXPECT_FALSE(process_ended(pidfd.value().get()));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(readable(pidfd.value().get(), kPollTimeoutMs));
  EXPECT_TRUE(process_ended(pidfd.value().get()));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(open_pidfd(child).status().code(), StatusCode::kNotFound);
}

TEST(AbstractSocket, ItsEndTellsThatTheListenerIsGone) {
  const std::string name = unique_name("end");
  auto listener = listen_abstract(name);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  EXPECT_EQ(listen_abstract(name).status().code(), StatusCode::kAlreadyExists);
  auto client = connect_abstract(name, ::getpid());
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  UniqueFd server = accept_abstract(listener.value().get());
  ASSERT_TRUE(server.valid());
  EXPECT_FALSE(accept_abstract(listener.value().get()).valid());
  EXPECT_FALSE(readable(client.value().get(), 0));
  server.reset();
  EXPECT_TRUE(readable(client.value().get(), kPollTimeoutMs));
  char byte;
  EXPECT_EQ(::recv(client.value().get(), &byte, 1, 0), 0);
}

TEST(AbstractSocket, RefusesAnotherProcessAndAnAbsentOne) {
  const std::string name = unique_name("owner");
  EXPECT_EQ(connect_abstract(name, ::getpid()).status().code(), StatusCode::kUnavailable);
  auto listener = listen_abstract(name);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(connect_abstract(name, ::getpid() + 1).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace crossdock
