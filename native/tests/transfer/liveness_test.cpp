// Whose word is taken that a peer is over.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crossdock/sys/process.h"
#include "pair.h"

namespace crossdock {
namespace {

constexpr PeerId kPeer = 1;

// The notice that a peer has closed its side ends quarantines, so it is taken from that peer alone.
TEST(Liveness, AnotherProcessCannotSayThatThePeerHasClosed) {
  Pair pair;
  const uint64_t notice[] = {2, 3};  // epoch and incarnation of the side that is to have closed
  pair.a.open(test_config("shm", 1u << 20), 1);
  pair.b.open(test_config("shm", 1u << 20), notice[0]);
  ASSERT_NO_FATAL_FAILURE(pair.connect(kPeer, notice[1]));
  ASSERT_TRUE(pair.a.transport->post(Disconnect{kPeer}).ok());
  ASSERT_TRUE(pair.until([&] { return pair.a.of_peer<PeerClosed>(kPeer) != nullptr; }));
  const std::string name = pair.a.transport->descriptor().socket_path;
  const pid_t owner = ::getpid();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto socket = connect_abstract(name, owner);
    const bool sent = socket.ok() && ::send(socket.value().get(), notice, sizeof notice, 0) ==
                                         static_cast<ssize_t>(sizeof notice);
    ::_exit(sent ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto stopped = [&] {
    return pair.a.find<PeerClosed>([](const auto& closed) { return closed.writes_stopped; }) !=
           nullptr;
  };
  for (int i = 0; i < 1000; ++i) pair.a.poll();
  EXPECT_FALSE(stopped()) << "B may still write";
  ASSERT_TRUE(pair.b.transport->post(Disconnect{kPeer}).ok());
  EXPECT_TRUE(pair.until(stopped));
}

}  // namespace
}  // namespace crossdock
