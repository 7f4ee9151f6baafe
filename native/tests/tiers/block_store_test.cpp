// The store's index, behaviour by behaviour.
#include "crossdock/tiers/block_store.h"

#include <gtest/gtest.h>

namespace crossdock {
namespace {

std::vector<ContentKey> keys(uint64_t first, uint64_t count) {
  std::vector<ContentKey> result;
  for (uint64_t i = 0; i < count; ++i) result.push_back({first + i, ~(first + i)});
  return result;
}

class BlockStoreTest : public ::testing::Test {
 protected:
  void TearDown() override { store_.check(); }

  BlockLease reserve(const std::vector<ContentKey>& wanted, uint64_t owner = 1, uint64_t ttl = 10) {
    auto lease = store_.reserve(wanted, {owner, ttl}, tick_);
    EXPECT_TRUE(lease.ok());
    return lease.ok() ? std::move(lease).value() : BlockLease{};
  }
  BlockLease acquire(const std::vector<ContentKey>& chain, uint64_t owner = 1, uint64_t ttl = 10) {
    auto lease = store_.acquire(chain, {owner, ttl}, tick_);
    EXPECT_TRUE(lease.ok());
    return lease.ok() ? std::move(lease).value() : BlockLease{};
  }
  static std::vector<Publication> publications(const BlockLease& lease) {
    std::vector<Publication> result;
    for (const StoredBlock& block : lease.blocks) {
      result.push_back({block.key, {block.key.low * 3, block.key.high * 5}});
    }
    return result;
  }
  void put(const std::vector<ContentKey>& chain) {
    const BlockLease lease = reserve(chain);
    const auto published = store_.commit(lease.lease_id, publications(lease));
    ASSERT_TRUE(published.ok());
    EXPECT_EQ(published.value(), lease.blocks.size());
  }

  BlockStore store_{[] {
    BlockStoreConfig config;
    config.num_blocks = 100;
    config.leases_max = 8;
    config.keys_max = 200;
    config.ttl_ticks_max = 1000;
    return config;
  }()};
  uint64_t tick_ = 1000;
};

TEST_F(BlockStoreTest, ReservedBlocksAreInvisibleUntilTheyArePublished) {
  const BlockLease lease = reserve(keys(0, 3));
  ASSERT_EQ(lease.blocks.size(), 3u);
  EXPECT_EQ(store_.match(keys(0, 3)), 0u);
  EXPECT_EQ(acquire(keys(0, 3)).lease_id, 0u);
  ASSERT_TRUE(store_.commit(lease.lease_id, publications(lease)).ok());
  EXPECT_EQ(store_.match(keys(0, 5)), 3u);
  const BlockLease read = acquire(keys(0, 5));
  ASSERT_EQ(read.blocks.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.blocks[i].slot, lease.blocks[i].slot);
    EXPECT_EQ(read.blocks[i].generation, lease.blocks[i].generation);
    EXPECT_EQ(read.blocks[i].checksum, (ContentChecksum{i * 3, (~i) * 5}));
  }
  EXPECT_FALSE(store_.release(lease.lease_id)) << "the reservation ended with its last block";
  EXPECT_EQ(store_.statistics().hit_blocks, 3u);
  EXPECT_EQ(store_.statistics().miss_blocks, 3u + 2u);
}

TEST_F(BlockStoreTest, MatchEndsAtTheFirstGap) {
  put(keys(0, 2));
  put(keys(3, 2));
  EXPECT_EQ(store_.match(keys(0, 5)), 2u);
  EXPECT_EQ(store_.match(keys(3, 2)), 2u);
  EXPECT_EQ(store_.match({}), 0u);
}

TEST_F(BlockStoreTest, OnlyOneWriterABlock) {
  const BlockLease first = reserve(keys(0, 4));
  const BlockLease second = reserve(keys(2, 4), 2);
  ASSERT_EQ(second.blocks.size(), 2u);
  EXPECT_EQ(second.blocks[0].key, (ContentKey{4, ~uint64_t{4}}));
  EXPECT_EQ(reserve(keys(0, 6)).lease_id, 0u) << "nothing is left to write";
  auto twice = keys(50, 1);
  twice.push_back(twice[0]);
  EXPECT_EQ(reserve(twice).blocks.size(), 1u);
}

TEST_F(BlockStoreTest, CommitIsAllOrNothingAndMayComeInParts) {
  const BlockLease lease = reserve(keys(0, 3));
  auto all = publications(lease);
  EXPECT_EQ(store_.commit(lease.lease_id, std::vector<Publication>{all[0], {{99, 99}, {}}})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.commit(lease.lease_id, std::vector<Publication>{all[0], all[0]}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.match(keys(0, 1)), 0u);
  EXPECT_TRUE(store_.commit(lease.lease_id, std::span(all).first(1)).ok());
  EXPECT_EQ(store_.match(keys(0, 3)), 1u);
  EXPECT_TRUE(store_.commit(lease.lease_id, std::span(all).subspan(1)).ok());
  EXPECT_EQ(store_.match(keys(0, 3)), 3u);
  EXPECT_EQ(store_.statistics().num_leases, 0u);
}

TEST_F(BlockStoreTest, ReleaseOfAReservationFreesItsSlotsAtOnce) {
  const BlockLease lease = reserve(keys(0, 3));
  const auto all = publications(lease);
  ASSERT_TRUE(store_.commit(lease.lease_id, std::span(all).first(1)).ok());
  EXPECT_TRUE(store_.release(lease.lease_id));
  EXPECT_EQ(store_.statistics().num_free, 99u);
  EXPECT_EQ(store_.statistics().abandoned_blocks, 2u);
  EXPECT_EQ(store_.match(keys(0, 3)), 1u);
  EXPECT_EQ(reserve(keys(0, 3)).blocks.size(), 2u);
}

TEST_F(BlockStoreTest, ExpiredReservationIsQuarantinedUntilTheWriterSaysSo) {
  const BlockLease lease = reserve(keys(0, 3));
  EXPECT_EQ(store_.next_tick(), 1010u);
  store_.expire(1009);
  EXPECT_EQ(store_.statistics().num_writing, 3u);
  store_.expire(1010);
  EXPECT_EQ(store_.statistics().num_quarantined, 3u);
  EXPECT_EQ(store_.next_tick(), UINT64_MAX);
  EXPECT_FALSE(store_.renew(lease.lease_id, 10, 1010));
  // The content may be written again, elsewhere.
  const BlockLease again = reserve(keys(0, 3));
  ASSERT_EQ(again.blocks.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(again.blocks[i].slot, lease.blocks[i].slot);
  EXPECT_TRUE(store_.release(lease.lease_id));
  EXPECT_EQ(store_.statistics().num_quarantined, 0u);
  EXPECT_EQ(store_.statistics().num_writing, 3u);
}

TEST_F(BlockStoreTest, LateCommitPublishesNothingAndEndsItsQuarantine) {
  const BlockLease lease = reserve(keys(0, 3));
  store_.expire(2000);
  const auto all = publications(lease);
  EXPECT_EQ(store_.commit(lease.lease_id, std::span(all).first(2)).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(store_.match(keys(0, 3)), 0u);
  EXPECT_EQ(store_.statistics().num_quarantined, 1u) << "the third block was not spoken of";
  EXPECT_EQ(store_.commit(lease.lease_id, std::span(all).subspan(2)).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(store_.statistics().num_quarantined, 0u);
  EXPECT_EQ(store_.statistics().num_leases, 0u);
}

TEST_F(BlockStoreTest, RenewedLeasesLive) {
  const BlockLease lease = reserve(keys(0, 3));
  EXPECT_TRUE(store_.renew(lease.lease_id, 100, 1005));
  EXPECT_FALSE(store_.renew(lease.lease_id, 1001, 1005)) << "beyond the longest lease";
  store_.expire(1104);
  EXPECT_EQ(store_.statistics().num_writing, 3u);
  store_.expire(1105);
  EXPECT_EQ(store_.statistics().num_quarantined, 3u);
  EXPECT_FALSE(store_.renew(12345, 1, 1105));
}

TEST_F(BlockStoreTest, ConnectionLossQuarantinesAndProofFrees) {
  put(keys(0, 4));
  const BlockLease read = acquire(keys(0, 4), 7);
  const BlockLease written = reserve(keys(10, 2), 7);
  const BlockLease other = reserve(keys(20, 2), 8);
  EXPECT_EQ(store_.statistics().num_pinned, 4u);
  store_.revoke_owner(7);
  EXPECT_EQ(store_.statistics().num_pinned, 0u);
  EXPECT_EQ(store_.statistics().num_quarantined, 2u);
  store_.revoke_owner(7);
  EXPECT_EQ(store_.statistics().expired_leases, 2u);
  store_.owner_gone(7);
  EXPECT_EQ(store_.statistics().num_quarantined, 0u);
  EXPECT_EQ(store_.statistics().num_writing, 2u);
  EXPECT_TRUE(store_.release(other.lease_id));
  EXPECT_FALSE(store_.release(read.lease_id));
  EXPECT_FALSE(store_.release(written.lease_id));
}

TEST_F(BlockStoreTest, EvictsTheLeastRecentlyUsedDownToTheLowWatermark) {
  put(keys(0, 40));
  put(keys(100, 40));
  acquire(keys(0, 40), 5, 1);
  store_.expire(5000);  // the first chain is now the one used last
  put(keys(200, 20));   // 80 + 20 are more than 88: down to 80
  EXPECT_EQ(store_.statistics().evicted_blocks, 20u);
  EXPECT_EQ(store_.match(keys(0, 40)), 40u);
  EXPECT_EQ(store_.match(keys(100, 40)), 20u) << "leaves go before their roots";
  EXPECT_EQ(store_.match(keys(200, 20)), 20u);
}

TEST_F(BlockStoreTest, PinnedBlocksAreNeverEvicted) {
  put(keys(0, 80));
  const BlockLease read = acquire(keys(0, 80));
  const BlockLease lease = reserve(keys(100, 50));
  EXPECT_EQ(lease.blocks.size(), 20u) << "as many as there is room for, the first ones";
  EXPECT_EQ(lease.blocks[19].key, (ContentKey{119, ~uint64_t{119}}));
  EXPECT_EQ(store_.match(keys(0, 80)), 80u);
  EXPECT_EQ(store_.statistics().refused_reservations, 30u);
  store_.release(read.lease_id);
}

TEST_F(BlockStoreTest, WhatAReservationNamesIsNotEvictedForIt) {
  put(keys(0, 80));
  const BlockLease lease = reserve(keys(0, 130));
  EXPECT_EQ(lease.blocks.size(), 20u);
  EXPECT_EQ(store_.match(keys(0, 80)), 80u);
}

TEST_F(BlockStoreTest, BadBlocksAreDroppedOnceAndTheirGenerationIsTold) {
  put(keys(0, 3));
  const BlockLease read = acquire(keys(0, 3));
  const StoredBlock& bad = read.blocks[1];
  EXPECT_FALSE(store_.drop(bad.key, bad.generation + 1));
  EXPECT_TRUE(store_.drop(bad.key, bad.generation));
  EXPECT_FALSE(store_.drop(bad.key, bad.generation));
  EXPECT_EQ(store_.match(keys(0, 3)), 1u);
  EXPECT_EQ(store_.statistics().num_retired, 1u) << "its slot is not used while it is pinned";
  const BlockLease again = reserve(keys(1, 1));
  EXPECT_NE(again.blocks[0].slot, bad.slot);
  store_.release(read.lease_id);
  EXPECT_EQ(store_.statistics().num_retired, 0u);
  EXPECT_EQ(store_.statistics().dropped_blocks, 1u);
  EXPECT_EQ(store_.statistics().stale_drops, 2u);
  ASSERT_TRUE(store_.commit(again.lease_id, publications(again)).ok());
  EXPECT_TRUE(store_.drop(again.blocks[0].key, again.blocks[0].generation)) << "unpinned: freed";
}

TEST_F(BlockStoreTest, AnOldGenerationDoesNotDropANewBlock) {
  const BlockLease first = reserve(keys(0, 1));
  ASSERT_TRUE(store_.commit(first.lease_id, publications(first)).ok());
  EXPECT_TRUE(store_.drop(first.blocks[0].key, first.blocks[0].generation));
  const BlockLease second = reserve(keys(0, 1));
  ASSERT_TRUE(store_.commit(second.lease_id, publications(second)).ok());
  EXPECT_EQ(second.blocks[0].slot, first.blocks[0].slot);
  EXPECT_FALSE(store_.drop(first.blocks[0].key, first.blocks[0].generation));
  EXPECT_EQ(store_.match(keys(0, 1)), 1u);
}

TEST_F(BlockStoreTest, EveryQuantityIsBounded) {
  EXPECT_EQ(store_.acquire(keys(0, 201), {1, 1}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.reserve(keys(0, 201), {1, 1}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.reserve(keys(0, 1), {1, 1001}, 0).status().code(), StatusCode::kInvalidArgument);
  for (uint64_t i = 0; i < 8; ++i) reserve(keys(i, 1), i);
  EXPECT_EQ(store_.reserve(keys(50, 1), {1, 1}, 0).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(BlockStoreTest, TooMuchQuarantineRefusesReservations) {
  const BlockLease lease = reserve(keys(0, 26), 3);
  store_.revoke_owner(3);
  EXPECT_EQ(store_.reserve(keys(50, 1), {1, 1}, 0).status().code(), StatusCode::kResourceExhausted);
  store_.release(lease.lease_id);
  EXPECT_EQ(reserve(keys(50, 1)).blocks.size(), 1u);
}

TEST_F(BlockStoreTest, AReadLeaseCannotBeCommitted) {
  put(keys(0, 1));
  const BlockLease read = acquire(keys(0, 1));
  EXPECT_EQ(store_.commit(read.lease_id, publications(read)).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(store_.commit(999, {}).status().code(), StatusCode::kNotFound);
}

TEST(BlockStoreDeathTest, WatermarksInTheWrongOrderAreAProgrammerError) {
  BlockStoreConfig config;
  config.num_blocks = 4;
  config.low_watermark = 0.9;
  EXPECT_DEATH(BlockStore{config}, "watermark");
}

}  // namespace
}  // namespace crossdock
