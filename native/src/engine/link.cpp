#include "crossdock/engine/link.h"

#include <fcntl.h>
#include <unistd.h>

#include <new>

namespace crossdock {
namespace {

constexpr uint64_t kMagic = 0x31'4b4e'494c'4458;  // "XDLINK1"
constexpr size_t kControlBytes = 4096;
static_assert(sizeof(LinkControl) <= kControlBytes);

size_t memory_bytes(size_t ring_bytes) {
  return kControlBytes + 2 * SpscRing::memory_bytes(ring_bytes);
}

std::byte* ring_at(const MappedMemory& memory, size_t ring_bytes, int index) {
  return memory.data() + kControlBytes + index * SpscRing::memory_bytes(ring_bytes);
}

}  // namespace

FrontLink::FrontLink(MappedMemory memory, EventFd to_engine, EventFd to_front, SpscRing outgoing,
                     SpscRing incoming)
    : memory_(std::move(memory)),
      to_engine_wake_(std::move(to_engine)),
      to_front_wake_(std::move(to_front)),
      outgoing_(std::move(outgoing)),
      incoming_(std::move(incoming)),
      control_(reinterpret_cast<LinkControl*>(memory_.data())) {}

Result<FrontLink> FrontLink::create(size_t ring_bytes) {
  auto memory = MappedMemory::create("crossdock-link", memory_bytes(ring_bytes));
  if (!memory.ok()) return memory.status();
  auto to_engine = EventFd::create();
  if (!to_engine.ok()) return to_engine.status();
  auto to_front = EventFd::create();
  if (!to_front.ok()) return to_front.status();
  auto* control = new (memory.value().data()) LinkControl;
  control->magic = kMagic;
  control->ring_bytes = ring_bytes;
  const size_t bytes = SpscRing::memory_bytes(ring_bytes);
  std::byte* first = ring_at(memory.value(), ring_bytes, 0);
  std::byte* second = ring_at(memory.value(), ring_bytes, 1);
  SpscRing::format(first, ring_bytes);
  SpscRing::format(second, ring_bytes);
  auto outgoing = SpscRing::attach(first, bytes, to_engine.value().fd());
  if (!outgoing.ok()) return outgoing.status();
  auto incoming = SpscRing::attach(second, bytes, to_front.value().fd());
  if (!incoming.ok()) return incoming.status();
  incoming.value().prepare_sleep();
  return FrontLink(std::move(memory).value(), std::move(to_engine).value(),
                   std::move(to_front).value(), std::move(outgoing).value(),
                   std::move(incoming).value());
}

Status FrontLink::send(const link::Command& command) {
  const auto record = link::encode(command);
  if (record.size() > outgoing_.max_record_bytes()) {
    return {StatusCode::kInvalidArgument, "a command of " + std::to_string(record.size()) +
                                              " bytes is larger than the ring's " +
                                              std::to_string(outgoing_.max_record_bytes())};
  }
  if (outgoing_.push(record)) return {};
  if (outgoing_.corrupt()) return {StatusCode::kDataLoss, "the engine broke the command ring"};
  return {StatusCode::kResourceExhausted, "the command ring is full"};
}

Result<std::vector<link::Event>> FrontLink::receive() {
  std::vector<link::Event> events;
  do {
    incoming_.finish_sleep();
    while (incoming_.pop(record_)) {
      auto event = link::decode_event(record_);
      if (!event.ok()) return event.status();
      events.push_back(std::move(event).value());
    }
    if (incoming_.corrupt()) {
      return Status(StatusCode::kDataLoss, "the engine broke the event ring");
    }
  } while (!incoming_.prepare_sleep());
  return events;
}

EngineLink::EngineLink(MappedMemory memory, SpscRing incoming, SpscRing outgoing)
    : memory_(std::move(memory)),
      incoming_(std::move(incoming)),
      outgoing_(std::move(outgoing)),
      control_(reinterpret_cast<LinkControl*>(memory_.data())) {}

Result<EngineLink> EngineLink::attach(int memory_fd, int to_engine_fd, int to_front_fd) {
  uint64_t head[2] = {};
  if (pread(memory_fd, head, sizeof head, 0) != sizeof head || head[0] != kMagic) {
    return Status(StatusCode::kFailedPrecondition,
                  "--link-fd is no link made by this version's front");
  }
  const size_t ring_bytes = head[1];
  auto memory = MappedMemory::map(memory_fd, memory_bytes(ring_bytes));
  if (!memory.ok()) return memory.status();
  const size_t bytes = SpscRing::memory_bytes(ring_bytes);
  auto incoming = SpscRing::attach(ring_at(memory.value(), ring_bytes, 0), bytes, to_engine_fd);
  if (!incoming.ok()) return incoming.status();
  auto outgoing = SpscRing::attach(ring_at(memory.value(), ring_bytes, 1), bytes, to_front_fd);
  if (!outgoing.ok()) return outgoing.status();
  return EngineLink(std::move(memory).value(), std::move(incoming).value(),
                    std::move(outgoing).value());
}

void EngineLink::send(const link::Event& event) {
  waiting_.push_back(link::encode(event));
  flush();
}

bool EngineLink::flush() {
  while (!waiting_.empty() && outgoing_.push(waiting_.front())) waiting_.pop_front();
  return waiting_.empty();
}

Result<std::optional<link::Command>> EngineLink::receive() {
  if (!incoming_.pop(record_)) {
    if (incoming_.corrupt()) return Status(StatusCode::kDataLoss, "the command ring is corrupt");
    return std::optional<link::Command>();
  }
  auto command = link::decode_command(record_);
  if (!command.ok()) return command.status();
  return std::optional<link::Command>(std::move(command).value());
}

}  // namespace crossdock
