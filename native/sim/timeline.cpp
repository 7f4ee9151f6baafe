#include "timeline.h"

#include <algorithm>
#include <cassert>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace crossdock::sim {
namespace {

constexpr size_t kTraceMax = 100'000;

}  // namespace

void Timeline::move_to(uint64_t ns) {
  assert(ns >= now_ns_);
  now_ns_ = ns;
}

void Timeline::schedule(uint64_t at_ns, Action action) {
  heap_.push_back({std::max(at_ns, now_ns_), num_scheduled_++, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

std::optional<uint64_t> Timeline::next_ns() const {
  if (heap_.empty()) return std::nullopt;
  return heap_.front().at_ns;
}

void Timeline::run_next() {
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  Entry entry = std::move(heap_.back());
  heap_.pop_back();
  move_to(entry.at_ns);
  entry.action();
}

void Timeline::note(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t kind = 0;
  for (const char* letter = what; *letter != 0; ++letter) kind = kind * 31 + uint8_t(*letter);
  for (const uint64_t value : {now_ns_, kind, a, b, c}) {
    digest_[0] = mix(digest_[0], value);
    digest_[1] = mix(digest_[1], digest_[0]);
  }
  if (!traces_) return;
  char line[160];
  std::snprintf(line, sizeof line,
                "%" PRIu64 ".%06" PRIu64 " ms %s %" PRIu64 " %" PRIu64 " %" PRIu64,
                now_ns_ / 1'000'000, now_ns_ % 1'000'000, what, a, b, c);
  if (trace_.size() == kTraceMax) trace_.pop_front();
  trace_.emplace_back(line);
}

std::string Timeline::digest() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, digest_[0], digest_[1]);
  return text;
}

}  // namespace crossdock::sim
