#include "crossdock/transfer/transfer_thread.h"

#include <sys/epoll.h>
#include <sys/prctl.h>

#include <atomic>
#include <cassert>
#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include "crossdock/sys/spsc_queue.h"

namespace crossdock {
namespace {

using Clock = std::chrono::steady_clock;

// How long the thread looks again after something happened before it sleeps: a wake-up costs about
// as much (5-50 us on a busy machine).
constexpr auto kSpin = std::chrono::microseconds(30);
// While operations are outstanding the thread never sleeps longer than this, whatever UCX's
// descriptor says; without any it still looks once in a while, so that no lost wake-up lasts.
constexpr int kBusySleepMs = 1;
constexpr int kIdleSleepMs = 10'000;

EventFd create_event_fd() {
  auto event = EventFd::create();
  // Without descriptors nothing of this process can work; there is no one to return a status to.
  assert(event.ok());
  return std::move(event).value();
}

PeerId peer_of(const Operation& operation) {
  return std::visit([](const auto& concrete) { return concrete.peer; }, operation);
}

bool ends_in_operation_done(const Operation& operation) {
  return std::holds_alternative<WriteSpans>(operation) ||
         std::holds_alternative<ReadSpans>(operation) || std::holds_alternative<Fence>(operation);
}

}  // namespace

struct TransferThread::Impl {
  explicit Impl(std::unique_ptr<Transport> owned) : transport(std::move(owned)) {}

  void run();
  void take_submissions();
  void retry_waiting();
  bool post(const Operation& operation);
  void fail(const Operation& operation, const Status& status);
  void publish();
  void sleep(int epoll_fd);

  std::unique_ptr<Transport> transport;
  EventFd submit_event = create_event_fd();
  EventFd done_event = create_event_fd();
  SpscQueue<Operation> submissions{submit_event};
  SpscQueue<TransferEvent> completions{done_event};
  std::atomic<bool> stopping = false;
  // True from the moment done_event was signalled until drain() looks.
  std::atomic<bool> signalled = false;

  // The thread's own.
  std::map<PeerId, std::deque<Operation>> waiting;  // for room in the transport's queue, in order
  std::vector<TransferEvent> events;
  uint64_t num_outstanding = 0;  // posted, their OperationDone not seen yet

  std::thread thread;
};

TransferThread::TransferThread(std::unique_ptr<Transport> transport)
    : impl_(std::make_unique<Impl>(std::move(transport))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

TransferThread::~TransferThread() {
  impl_->stopping.store(true);
  impl_->submit_event.signal();
  impl_->thread.join();
}

std::span<std::byte> TransferThread::segment() { return impl_->transport->segment(); }
const EndpointDescriptor& TransferThread::descriptor() const {
  return impl_->transport->descriptor();
}
int TransferThread::event_fd() const { return impl_->done_event.fd(); }

void TransferThread::submit(Operation operation) { impl_->submissions.push(std::move(operation)); }

bool TransferThread::drain(std::vector<TransferEvent>& events) {
  // In this order: a signal after the drain of the descriptor leaves it readable, and an event
  // pushed before the exchange is seen by the pops below. The drain comes even where nothing is
  // signalled: the last look may have taken events whose signal was yet to come.
  impl_->done_event.drain();
  if (!impl_->signalled.exchange(false)) return false;
  const size_t before = events.size();
  while (auto event = impl_->completions.pop()) events.emplace_back(std::move(*event));
  return events.size() != before;
}

void TransferThread::Impl::run() {
  ::prctl(PR_SET_NAME, "transfer");
  const UniqueFd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  assert(epoll_fd.valid());
  for (const int fd : {transport->wake_fd(), submit_event.fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    [[maybe_unused]] const int added = ::epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, fd, &event);
    assert(added == 0);
  }
  auto last_busy = Clock::now();
  while (!stopping.load()) {
    take_submissions();
    retry_waiting();
    const bool progressed = transport->poll(events);
    const bool busy = progressed || !events.empty();
    publish();
    const auto now = Clock::now();
    if (busy) {
      last_busy = now;
    } else if (now - last_busy > kSpin) {
      sleep(epoll_fd.get());
      last_busy = Clock::now() - kSpin;
    }
  }
  // On this thread, which alone may touch UCX.
  transport.reset();
}

void TransferThread::Impl::take_submissions() {
  while (auto operation = submissions.pop()) {
    const PeerId peer = peer_of(*operation);
    auto queued = waiting.find(peer);
    if (queued != waiting.end() && std::holds_alternative<Disconnect>(*operation)) {
      // Not behind operations that may wait for a peer that never answers.
      const Status cancelled(StatusCode::kCancelled, "the peer was disconnected");
      for (const Operation& dropped : queued->second) fail(dropped, cancelled);
      waiting.erase(queued);
      queued = waiting.end();
    }
    if (queued != waiting.end()) {
      queued->second.push_back(std::move(*operation));
    } else if (!post(*operation)) {
      waiting[peer].push_back(std::move(*operation));
    }
  }
}

void TransferThread::Impl::retry_waiting() {
  for (auto entry = waiting.begin(); entry != waiting.end();) {
    auto& operations = entry->second;
    while (!operations.empty() && post(operations.front())) operations.pop_front();
    entry = operations.empty() ? waiting.erase(entry) : std::next(entry);
  }
}

// False when the transport has no room for it now.
bool TransferThread::Impl::post(const Operation& operation) {
  const Status status = transport->post(operation);
  const bool full = status.code() == StatusCode::kResourceExhausted;
  // A Connect is refused for want of descriptors, which waiting does not bring.
  if (full && !std::holds_alternative<Connect>(operation)) return false;
  if (!status.ok()) {
    fail(operation, status);
  } else if (ends_in_operation_done(operation)) {
    ++num_outstanding;
  }
  return true;
}

void TransferThread::Impl::fail(const Operation& operation, const Status& status) {
  if (const auto* connect = std::get_if<Connect>(&operation)) {
    events.emplace_back(PeerBroken{connect->peer, status, false});
  } else if (const auto* disconnect = std::get_if<Disconnect>(&operation)) {
    // Its Connect failed, so there never was anything to close.
    events.emplace_back(PeerClosed{disconnect->peer, true});
  } else if (const auto* notify = std::get_if<Notify>(&operation)) {
    // A message to a peer that is broken or closed needs no event: PeerBroken said so.
    if (status.code() == StatusCode::kInvalidArgument) {
      events.emplace_back(PeerBroken{notify->peer, status, false});
    }
  } else {
    OperationDone done;
    if (const auto* write = std::get_if<WriteSpans>(&operation)) done.operation = write->operation;
    if (const auto* read = std::get_if<ReadSpans>(&operation)) done.operation = read->operation;
    if (const auto* fence = std::get_if<Fence>(&operation)) done.operation = fence->operation;
    done.status = status;
    ++num_outstanding;  // publish() takes it off again
    events.emplace_back(std::move(done));
  }
}

void TransferThread::Impl::publish() {
  if (events.empty()) return;
  for (TransferEvent& event : events) {
    if (std::holds_alternative<OperationDone>(event)) --num_outstanding;
    completions.push(std::move(event));
  }
  events.clear();
  if (!signalled.exchange(true)) done_event.signal();
}

void TransferThread::Impl::sleep(int epoll_fd) {
  if (submissions.prepare_sleep() && transport->arm()) {
    const bool waits = num_outstanding != 0 || !waiting.empty();
    epoll_event ready[2];
    ::epoll_wait(epoll_fd, ready, 2, waits ? kBusySleepMs : kIdleSleepMs);
  }
  submissions.finish_sleep();
}

}  // namespace crossdock
