// Every byte of every receiver's block, for all sizes, kinds and dtypes.
#include "crossdock/blocks/rank_copies.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace crossdock {
namespace {

constexpr uint32_t kSizes[] = {1, 2, 4, 8};

// What a byte of a block means, from the description of the layout alone.
struct Meaning {
  uint32_t layer = 0;
  uint32_t head = 0;  // of the model
  bool is_value = false;
  bool is_scale = false;
  uint32_t slot = 0;
  uint32_t at = 0;  // byte of the slot's K, V, scale or row
  friend bool operator==(const Meaning&, const Meaning&) = default;
};

// The KV heads of a rank: an equal share, or the one that it shares with its neighbours.
std::vector<uint32_t> heads_of(const KvLayout& layout) {
  std::vector<uint32_t> heads;
  for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
    const bool held =
        layout.num_kv_heads >= layout.tensor_parallel_size
            ? head / (layout.num_kv_heads / layout.tensor_parallel_size) ==
                  layout.tensor_parallel_rank
            : layout.tensor_parallel_rank / (layout.tensor_parallel_size / layout.num_kv_heads) ==
                  head;
    if (held) heads.push_back(head);
  }
  return heads;
}

std::vector<Meaning> meanings(const KvLayout& layout) {
  std::vector<Meaning> bytes;
  const auto element = static_cast<uint32_t>(size_bytes(layout.dtype));
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    if (layout.kind == KvKind::kMla) {
      for (uint32_t slot = 0; slot < kBlockTokens; ++slot) {
        for (uint32_t at = 0; at < layout.row_bytes(); ++at) {
          bytes.push_back({layer, 0, false, false, slot, at});
        }
      }
      continue;
    }
    for (const uint32_t head : heads_of(layout)) {
      for (const bool is_value : {false, true}) {
        for (uint32_t i = 0; i < kBlockTokens * layout.head_dim; ++i) {
          const uint32_t slot = is_value ? i / layout.head_dim : i % kBlockTokens;
          const uint32_t dim = is_value ? i % layout.head_dim : i / kBlockTokens;
          for (uint32_t byte = 0; byte < element; ++byte) {
            bytes.push_back({layer, head, is_value, false, slot, dim * element + byte});
          }
        }
        if (!layout.is_scaled()) continue;
        for (uint32_t i = 0; i < kBlockTokens * sizeof(float); ++i) {
          const auto scale_bytes = static_cast<uint32_t>(sizeof(float));
          bytes.push_back({layer, head, is_value, true, i / scale_bytes, i % scale_bytes});
        }
      }
    }
  }
  return bytes;
}

KvLayout of_rank(KvLayout layout, uint32_t rank, uint32_t size) {
  layout.tensor_parallel_rank = rank;
  layout.tensor_parallel_size = size;
  return layout;
}

// Copies of all senders into one receiver: each byte once, from one of the same meaning.
void check_receiver(const KvLayout& model, uint32_t num_senders, const KvLayout& to) {
  const auto wanted = meanings(to);
  ASSERT_EQ(wanted.size(), to.block_bytes());
  std::vector<uint32_t> num_writes(wanted.size(), 0);
  for (uint32_t rank = 0; rank < num_senders; ++rank) {
    const KvLayout from = of_rank(model, rank, num_senders);
    const auto held = meanings(from);
    const auto copies = plan_rank_copies(from, to);
    size_t source_end = 0, target_end = 0;
    for (const RankCopy& copy : copies) {
      ASSERT_LE(copy.source_bytes + copy.length_bytes, held.size());
      ASSERT_LE(copy.target_bytes + copy.length_bytes, wanted.size());
      const bool adjoins = &copy != copies.data() && copy.source_bytes == source_end &&
                           copy.target_bytes == target_end;
      ASSERT_FALSE(adjoins) << "two copies where one would do";
      source_end = copy.source_bytes + copy.length_bytes;
      target_end = copy.target_bytes + copy.length_bytes;
      for (size_t i = 0; i < copy.length_bytes; ++i) {
        ASSERT_EQ(held[copy.source_bytes + i], wanted[copy.target_bytes + i]);
        ++num_writes[copy.target_bytes + i];
      }
    }
    ASSERT_LE(copies.size(), model.num_layers) << "the heads of a layer are one copy";
    if (from == to) {
      ASSERT_EQ(copies, (std::vector<RankCopy>{{0, 0, to.block_bytes()}}));
    }
  }
  for (const uint32_t count : num_writes) ASSERT_EQ(count, 1u);
}

void check_all_ranks(const KvLayout& model) {
  for (const uint32_t num_senders : kSizes) {
    for (const uint32_t num_receivers : kSizes) {
      for (uint32_t rank = 0; rank < num_receivers; ++rank) {
        SCOPED_TRACE(std::to_string(num_senders) + " senders, receiver " + std::to_string(rank) +
                     " of " + std::to_string(num_receivers) + ", " +
                     std::to_string(model.num_kv_heads) + " heads, " + name(model.dtype));
        check_receiver(model, num_senders, of_rank(model, rank, num_receivers));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(RankCopies, PlanEveryByteOfGroupedHeadsOnce) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4m3, DType::kFp8E5m2}) {
    for (const uint32_t num_heads : kSizes) {
      check_all_ranks({.num_layers = 3, .num_kv_heads = num_heads, .head_dim = 4, .dtype = dtype});
    }
  }
}

TEST(RankCopies, PlanEveryByteOfALatentOnce) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp8DsMla}) {
    check_all_ranks({.kind = KvKind::kMla,
                     .num_layers = 2,
                     .num_kv_heads = 1,
                     .head_dim = 128,
                     .rope_dim = 8,
                     .dtype = dtype});
  }
}

TEST(RankCopies, SpreadReceiversOverTheSendersThatHoldTheSame) {
  const KvLayout model{.num_layers = 2, .num_kv_heads = 2, .head_dim = 4};
  std::vector<uint32_t> num_served(8, 0);
  for (uint32_t sender = 0; sender < 8; ++sender) {
    for (uint32_t receiver = 0; receiver < 8; ++receiver) {
      num_served[sender] +=
          !plan_rank_copies(of_rank(model, sender, 8), of_rank(model, receiver, 8)).empty();
    }
  }
  EXPECT_EQ(num_served, std::vector<uint32_t>(8, 1));
}

}  // namespace
}  // namespace crossdock
