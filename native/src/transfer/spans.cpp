#include "spans.h"

namespace crossdock {
namespace {

bool inside(uint64_t offset, uint64_t length, uint64_t bytes) {
  return length <= bytes && offset <= bytes - length;
}

}  // namespace

Status check_spans(const std::vector<CopySpan>& spans, uint64_t local_bytes,
                   uint64_t remote_bytes) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const CopySpan& span = spans[i];
    const bool local_ok = inside(span.local_offset, span.length_bytes, local_bytes);
    if (local_ok && inside(span.remote_offset, span.length_bytes, remote_bytes)) continue;
    const char* side = local_ok ? "remote" : "local";
    const uint64_t offset = local_ok ? span.remote_offset : span.local_offset;
    const uint64_t bound = local_ok ? remote_bytes : local_bytes;
    return {StatusCode::kInvalidArgument,
            "spans[" + std::to_string(i) + "]: " + std::to_string(span.length_bytes) +
                " bytes at " + side + "_offset " + std::to_string(offset) +
                " leave the segment of " + std::to_string(bound) + " bytes"};
  }
  return {};
}

std::vector<CopySpan> merge_spans(const std::vector<CopySpan>& spans) {
  std::vector<CopySpan> merged;
  for (const CopySpan& span : spans) {
    if (span.length_bytes == 0) continue;
    if (!merged.empty()) {
      CopySpan& last = merged.back();
      if (last.local_offset + last.length_bytes == span.local_offset &&
          last.remote_offset + last.length_bytes == span.remote_offset) {
        last.length_bytes += span.length_bytes;
        continue;
      }
      // Blocks that went back to a pool in order come out of it in reverse.
      if (span.local_offset + span.length_bytes == last.local_offset &&
          span.remote_offset + span.length_bytes == last.remote_offset) {
        last = {span.local_offset, span.remote_offset, span.length_bytes + last.length_bytes};
        continue;
      }
    }
    merged.push_back(span);
  }
  return merged;
}

uint64_t total_bytes(const std::vector<CopySpan>& spans) {
  uint64_t total = 0;
  for (const CopySpan& span : spans) total += span.length_bytes;
  return total;
}

}  // namespace crossdock
