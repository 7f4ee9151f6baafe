#include "crossdock/blocks/block_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace crossdock {
namespace {

using Table = std::vector<BlockId>;

void check(const BlockPool& pool, const Table& references = {}) {
  const std::span<const BlockId> table(references);
  pool.check({&table, 1});
}

TEST(BlockPool, AcquiresAllOrNone) {
  BlockPool pool(3);
  Table table;
  EXPECT_TRUE(pool.acquire(2, table));
  EXPECT_EQ(table, (Table{0, 1}));
  EXPECT_FALSE(pool.acquire(2, table));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(pool.num_free(), 1u);
  EXPECT_TRUE(pool.acquire(1, table));
  EXPECT_FALSE(pool.acquire(1, table));
  EXPECT_TRUE(pool.acquire(0, table));
  EXPECT_EQ(pool.num_owned(), 3u);
  check(pool, table);
}

TEST(BlockPool, FreesAnOwnedBlockWithItsLastReference) {
  BlockPool pool(1);
  Table table;
  ASSERT_TRUE(pool.acquire(1, table));
  pool.reference(0);
  pool.unreference(0);
  EXPECT_EQ(pool.state(0), BlockState::kOwned);
  pool.unreference(0);
  EXPECT_EQ(pool.state(0), BlockState::kFree);
  check(pool);
}

TEST(BlockPool, KeepsACachedBlockWithoutReferences) {
  BlockPool pool(1);
  Table table;
  ASSERT_TRUE(pool.acquire(1, table));
  pool.cache(0);
  EXPECT_EQ(pool.num_cached_unreferenced(), 0u);
  pool.unreference(0);
  EXPECT_EQ(pool.state(0), BlockState::kCached);
  EXPECT_EQ(pool.num_cached_unreferenced(), 1u);
  pool.reference(0);
  EXPECT_EQ(pool.num_cached_unreferenced(), 0u);
  pool.uncache(0);
  EXPECT_EQ(pool.state(0), BlockState::kOwned);
  check(pool, {0});
}

TEST(BlockPool, TellsOfReleasedCachedBlocksOnce) {
  BlockPool pool(3);
  Table table;
  ASSERT_TRUE(pool.acquire(3, table));
  for (const BlockId block : table) pool.cache(block);
  pool.unreference(0);
  pool.unreference(1);
  pool.reference(1);  // in use again before anybody looked
  Table released;
  pool.drain_released([&](BlockId block) { released.push_back(block); });
  EXPECT_EQ(released, Table{0});
  EXPECT_FALSE(pool.is_released(0));
  pool.drain_released([&](BlockId block) { released.push_back(block); });
  EXPECT_EQ(released.size(), 1u);
  pool.unreference(1);
  EXPECT_TRUE(pool.is_released(1));
  pool.uncache(1);  // free by the time that anybody looks
  pool.drain_released([&](BlockId block) { released.push_back(block); });
  EXPECT_EQ(released.size(), 1u);
}

TEST(BlockPoolDeathTest, CatchesWhatBreaksConservation) {
  BlockPool pool(2);
  Table table;
  ASSERT_TRUE(pool.acquire(1, table));
  EXPECT_DEATH(check(pool), "references");
  EXPECT_DEATH(check(pool, {0, 0}), "references");
  EXPECT_DEATH(check(pool, {1}), "references");
  EXPECT_DEATH(check(pool, {0, 7}), "out of range");
  EXPECT_DEATH(pool.unreference(1), "references");
  EXPECT_DEATH(pool.reference(1), "state");
  EXPECT_DEATH(pool.cache(1), "kOwned");
  EXPECT_DEATH(pool.uncache(0), "kCached");
  EXPECT_DEATH(pool.release_quarantined(0), "kQuarantined");
  pool.reference(0);
  EXPECT_DEATH(pool.quarantine(0), "references");
}

// Every legal sequence of events over three blocks, against a model that knows each block's state
// and count and nothing else.
class SmallWorld {
 public:
  struct ModelBlock {
    BlockState state = BlockState::kFree;
    uint32_t references = 0;
  };

  void explore(const BlockPool& pool, const std::array<ModelBlock, 3>& model, int events_left) {
    compare(pool, model);
    if (events_left == 0) return;
    for (uint32_t count = 1; count <= 3; ++count) try_acquire(pool, model, count, events_left);
    for (BlockId block = 0; block < 3; ++block) {
      const ModelBlock& m = model[block];
      const bool owned = m.state == BlockState::kOwned;
      const bool cached = m.state == BlockState::kCached;
      const auto go = [&](bool legal, auto&& on_pool, ModelBlock after) {
        if (!legal) return;
        BlockPool next_pool = pool;
        auto next_model = model;
        on_pool(next_pool);
        next_model[block] = after;
        explore(next_pool, next_model, events_left - 1);
      };
      const bool last = m.references == 1;
      go((owned || cached) && m.references < 3, [&](BlockPool& p) { p.reference(block); },
         {m.state, m.references + 1});
      go(m.references > 0, [&](BlockPool& p) { p.unreference(block); },
         {owned && last ? BlockState::kFree : m.state, m.references - 1});
      go(owned, [&](BlockPool& p) { p.cache(block); }, {BlockState::kCached, m.references});
      go(cached, [&](BlockPool& p) { p.uncache(block); },
         {m.references > 0 ? BlockState::kOwned : BlockState::kFree, m.references});
      go(owned && last, [&](BlockPool& p) { p.quarantine(block); }, {BlockState::kQuarantined, 0});
      go(m.state == BlockState::kQuarantined, [&](BlockPool& p) { p.release_quarantined(block); },
         {BlockState::kFree, 0});
    }
  }

  uint64_t num_worlds() const { return num_worlds_; }

 private:
  void try_acquire(const BlockPool& pool, const std::array<ModelBlock, 3>& model, uint32_t count,
                   int events_left) {
    BlockPool next_pool = pool;
    auto next_model = model;
    Table table;
    const bool fits = count <= pool.num_free();
    ASSERT_EQ(next_pool.acquire(count, table), fits);
    ASSERT_EQ(table.size(), fits ? count : 0);
    if (!fits) return;
    for (const BlockId block : table) {
      ASSERT_EQ(next_model[block].state, BlockState::kFree) << "a block was handed out twice";
      next_model[block] = {BlockState::kOwned, 1};
    }
    explore(next_pool, next_model, events_left - 1);
  }

  void compare(const BlockPool& pool, const std::array<ModelBlock, 3>& model) {
    ++num_worlds_;
    Table references;
    uint32_t counts[4] = {};
    uint32_t num_cached_unreferenced = 0;
    for (BlockId block = 0; block < 3; ++block) {
      ASSERT_EQ(pool.state(block), model[block].state);
      ASSERT_EQ(pool.references(block), model[block].references);
      references.insert(references.end(), model[block].references, block);
      ++counts[static_cast<size_t>(model[block].state)];
      num_cached_unreferenced +=
          model[block].state == BlockState::kCached && model[block].references == 0;
    }
    ASSERT_EQ(pool.num_free(), counts[0]);
    ASSERT_EQ(pool.num_owned(), counts[1]);
    ASSERT_EQ(pool.num_cached(), counts[2]);
    ASSERT_EQ(pool.num_quarantined(), counts[3]);
    ASSERT_EQ(pool.num_cached_unreferenced(), num_cached_unreferenced);
    check(pool, references);
  }

  uint64_t num_worlds_ = 0;
};

TEST(BlockPool, EverySequenceOfSixEventsOverThreeBlocks) {
  SmallWorld world;
  world.explore(BlockPool(3), {}, 6);
  EXPECT_GT(world.num_worlds(), 10'000u);
}

}  // namespace
}  // namespace crossdock
