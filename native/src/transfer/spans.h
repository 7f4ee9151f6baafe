// Checks and merges the spans of an operation. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

// INVALID_ARGUMENT names the first span that leaves either segment.
Status check_spans(const std::vector<CopySpan>& spans, uint64_t local_bytes, uint64_t remote_bytes);

// Joins each span to the one before it where both continue on both sides; drops empty ones. Order
// is kept, since later spans may overwrite earlier ones.
std::vector<CopySpan> merge_spans(const std::vector<CopySpan>& spans);

uint64_t total_bytes(const std::vector<CopySpan>& spans);

}  // namespace crossdock
