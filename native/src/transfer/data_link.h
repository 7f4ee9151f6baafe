// How pieces of operations reach one peer: a link posts them, a sink hears of each exactly once.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "crossdock/transfer/transfer.h"

namespace crossdock {

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // May be called from within the link's methods, and from within UCX's progress.
  virtual void on_piece(uint64_t token, ucs_status_t status) = 0;
};

class DataLink {
 public:
  virtual ~DataLink() = default;

  struct PieceMax {
    uint64_t bytes = 0;    // of a put's spans together, and of a get
    size_t num_spans = 1;  // of a put
  };
  virtual PieceMax piece_max() const = 0;
  // `bulk`: the spans are part of an operation of at least kBulkBytesMin.
  virtual void put(std::span<const CopySpan> spans, uint64_t token, bool bulk) = 0;
  virtual void get(const CopySpan& span, uint64_t token) = 0;
  // Done with OK only when every put before it has arrived.
  virtual void fence(uint64_t token) = 0;

  // Posts what the link itself has waiting. Returns whether it did.
  virtual bool pump() = 0;
  virtual bool can_pump() const = 0;
  // Nothing is posted any more, and what only the peer could have ended ends now.
  virtual void close() = 0;
  // No UCX request of this link is outstanding.
  virtual bool quiet() const = 0;
};

// Copies into the peer's segment, which is mapped here: everything has happened when it returns.
class SharedMemoryLink : public DataLink {
 public:
  SharedMemoryLink(std::byte* local_base, std::byte* remote_base, PieceSink& sink)
      : local_base_(local_base), remote_base_(remote_base), sink_(sink) {}

  PieceMax piece_max() const override;
  void put(std::span<const CopySpan> spans, uint64_t token, bool bulk) override;
  void get(const CopySpan& span, uint64_t token) override;
  void fence(uint64_t token) override { sink_.on_piece(token, UCS_OK); }
  bool pump() override { return false; }
  bool can_pump() const override { return false; }
  void close() override {}
  bool quiet() const override { return true; }

 private:
  std::byte* const local_base_;
  std::byte* const remote_base_;
  PieceSink& sink_;
};

// One-sided puts and gets of the network card.
class RdmaLink : public DataLink {
 public:
  struct Target {
    ucp_ep_h endpoint = nullptr;
    ucp_rkey_h remote_key = nullptr;
    ucp_mem_h local_memory = nullptr;
    std::byte* local_base = nullptr;
    uint64_t remote_base = 0;
  };

  RdmaLink(const Target& target, PieceSink& sink) : target_(target), sink_(sink) {}

  PieceMax piece_max() const override;
  void put(std::span<const CopySpan> spans, uint64_t token, bool) override {
    transfer(spans.front(), token, true);
  }
  void get(const CopySpan& span, uint64_t token) override { transfer(span, token, false); }
  void fence(uint64_t token) override;
  bool pump() override;
  bool can_pump() const override { return !read_backs_.empty(); }
  void close() override;
  bool quiet() const override { return num_requests_ == 0; }

 private:
  struct Posted {
    RdmaLink* link = nullptr;
    uint64_t token = 0;
    bool flush_before_read_back = false;
    std::byte read_back{};
  };

  void transfer(const CopySpan& span, uint64_t token, bool write);
  static ucp_request_param_t param_for(Posted& posted);
  void track(ucs_status_ptr_t request, std::unique_ptr<Posted> posted);
  static void on_complete(void* request, ucs_status_t status, void* user_data);
  void complete(const Posted& posted, ucs_status_t status);

  const Target target_;
  PieceSink& sink_;
  std::deque<uint64_t> read_backs_;  // flushed fences whose byte is still to be read
  size_t num_requests_ = 0;
  bool closed_ = false;
};

}  // namespace crossdock
