#include "crossdock/prefix/prefix_tree.h"

#include <gtest/gtest.h>

namespace crossdock {
namespace {

using Table = std::vector<BlockId>;
using Chain = std::vector<BlockHash>;

// Chains that differ from their `fork`-th hash on.
Chain chain_of(size_t length, uint64_t name, size_t fork = 0) {
  Chain chain(length);
  for (size_t i = 0; i < length; ++i) {
    const uint64_t owner = i < fork ? 0 : name;
    chain[i] = {(owner * 0x9e3779b97f4a7c15ULL) ^ ((i + 1) * 0xbf58476d1ce4e5b9ULL), owner};
  }
  return chain;
}

class PrefixTreeTest : public testing::Test {
 protected:
  // Publishes under new blocks; what is resident already goes back to the pool.
  Table add(const Chain& chain) {
    Table table;
    EXPECT_TRUE(pool_.acquire(static_cast<uint32_t>(chain.size()), table));
    tree_.insert(chain, table, ++tick_);
    release(table);
    return table;
  }
  Table match(const Chain& chain) {
    Table table;
    const uint32_t num_matched = tree_.match(chain, ++tick_, table);
    EXPECT_EQ(num_matched, table.size());
    return table;
  }
  void release(const Table& table) {
    for (const BlockId block : table) pool_.unreference(block);
  }
  void check(const Table& held = {}) {
    const std::span<const BlockId> table(held);
    pool_.check({&table, 1});
    tree_.check();
  }

  BlockPool pool_{4096};
  PrefixTree tree_{pool_};
  uint64_t tick_ = 0;
};

TEST_F(PrefixTreeTest, AnEmptyTreeMatchesNothing) {
  EXPECT_TRUE(match(chain_of(3, 1)).empty());
  EXPECT_EQ(tree_.match_length(chain_of(3, 1)), 0u);
  EXPECT_EQ(tree_.evict(5), 0u);
  EXPECT_EQ(tree_.insert({}, {}, 1), 0u);
  check();
}

TEST_F(PrefixTreeTest, MatchesTheLongestResidentPrefix) {
  const Table first = add(chain_of(40, 1, 20));
  add(chain_of(30, 2, 20));
  check();
  EXPECT_EQ(tree_.num_blocks(), 50u);
  EXPECT_EQ(tree_.match_length(chain_of(60, 1, 20)), 40u);
  EXPECT_EQ(tree_.match_length(chain_of(60, 2, 20)), 30u);
  EXPECT_EQ(tree_.match_length(chain_of(60, 3, 20)), 20u);
  EXPECT_EQ(tree_.match_length(chain_of(60, 3, 19)), 19u);
  EXPECT_EQ(tree_.match_length(chain_of(60, 3)), 0u);
  const Table matched = match(chain_of(60, 1, 20));
  EXPECT_EQ(matched, first);
  check(matched);
  release(matched);
}

TEST_F(PrefixTreeTest, MatchPins) {
  const Table table = add(chain_of(5, 1));
  const Table held = match(chain_of(3, 1));
  EXPECT_EQ(pool_.references(table[2]), 1u);
  EXPECT_EQ(pool_.references(table[3]), 0u);
  EXPECT_EQ(tree_.evict(100), 2u) << "only what nobody holds is evicted";
  check(held);
  release(held);
  EXPECT_EQ(tree_.evict(100), 3u) << "a released leaf is evictable again";
  check();
}

TEST_F(PrefixTreeTest, ADuplicateStaysPrivate) {
  const Chain chain = chain_of(4, 1);
  const Table resident = add(Chain(chain.begin(), chain.begin() + 2));
  Table mine;
  ASSERT_TRUE(pool_.acquire(4, mine));
  EXPECT_EQ(tree_.insert(chain, mine, ++tick_), 2u);
  EXPECT_EQ(pool_.state(mine[0]), BlockState::kOwned);
  EXPECT_EQ(pool_.state(mine[1]), BlockState::kOwned);
  EXPECT_EQ(pool_.state(mine[2]), BlockState::kCached);
  check(mine);
  // The residents stand above blocks that are held, so they stay, though nobody references them.
  EXPECT_EQ(pool_.num_cached_unreferenced(), 2u);
  EXPECT_EQ(tree_.evict(100), 0u);
  EXPECT_EQ(tree_.insert(chain, mine, ++tick_), 0u);
  release(mine);
  const Table matched = match(chain);
  EXPECT_EQ(matched, (Table{resident[0], resident[1], mine[2], mine[3]}));
  release(matched);
  check();
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedLeafTailFirst) {
  const Chain a = chain_of(4, 1, 2), b = chain_of(4, 2, 2), c = chain_of(3, 3);
  add(a);
  add(b);
  add(c);
  release(match(a));  // from the oldest: b, c, a
  Chain evicted;
  EXPECT_EQ(tree_.evict(4, &evicted), 4u);
  EXPECT_EQ(evicted, (Chain{b[3], b[2], c[2], c[1]}));
  check();
  evicted.clear();
  EXPECT_EQ(tree_.evict(100, &evicted), 5u);
  EXPECT_EQ(evicted, (Chain{c[0], a[3], a[2], a[1], a[0]})) << "the shared root goes last";
  EXPECT_EQ(tree_.num_blocks(), 0u);
  EXPECT_EQ(pool_.num_free(), pool_.num_blocks());
  check();
}

TEST_F(PrefixTreeTest, APartialMatchMarksOnlyWhatItMatched) {
  const Chain a = chain_of(4, 1), b = chain_of(2, 2);
  add(a);
  add(b);
  release(match(Chain(a.begin(), a.begin() + 2)));  // from the oldest: a's tail, b, a's head
  Chain evicted;
  tree_.evict(5, &evicted);
  EXPECT_EQ(evicted, (Chain{a[3], a[2], b[1], b[0], a[1]}));
  check();
}

TEST_F(PrefixTreeTest, MatchLengthChangesNothing) {
  const Chain a = chain_of(2, 1), b = chain_of(2, 2);
  add(a);
  add(b);
  EXPECT_EQ(tree_.match_length(a), 2u);
  Chain evicted;
  tree_.evict(2, &evicted);
  EXPECT_EQ(evicted, (Chain{a[1], a[0]}));
}

TEST_F(PrefixTreeTest, ATickBelowAnEarlierOneDoesNotTurnTheOrder) {
  const Chain a = chain_of(1, 1), b = chain_of(1, 2);
  Table table;
  ASSERT_TRUE(pool_.acquire(2, table));
  tree_.insert(a, std::span(table).first(1), 100);
  tree_.insert(b, std::span(table).last(1), 7);
  release(table);
  Chain evicted;
  tree_.evict(1, &evicted);
  EXPECT_EQ(evicted, a);
  check();
}

TEST_F(PrefixTreeTest, GrowsBlockByBlockLikeADecode) {
  const Chain chain = chain_of(100, 1);
  Table table;
  for (size_t n = 1; n <= chain.size(); ++n) {
    ASSERT_TRUE(pool_.acquire(1, table));
    ASSERT_EQ(tree_.insert(std::span(chain).first(n), table, ++tick_), 1u);
    check(table);
  }
  EXPECT_EQ(match(chain), table);
  release(table);
  release(table);
  EXPECT_EQ(tree_.evict(1000), 100u);
}

TEST_F(PrefixTreeTest, DeepChainsNeedNoStack) {
  BlockPool pool(1'000'000);
  PrefixTree tree(pool);
  const Chain chain = chain_of(1'000'000, 1);
  Table table;
  ASSERT_TRUE(pool.acquire(1'000'000, table));
  EXPECT_EQ(tree.insert(chain, table, 1), 1'000'000u);
  tree.check();
  for (const BlockId block : table) pool.unreference(block);
  table.clear();
  EXPECT_EQ(tree.match(std::span(chain).first(700'001), 2, table), 700'001u);
  EXPECT_EQ(tree.evict(1'000'000), 299'999u);
  for (const BlockId block : table) pool.unreference(block);
  EXPECT_EQ(tree.evict(1'000'000), 700'001u);
  tree.check();
}

TEST(PrefixTreeDeathTest, CatchesABlockThatIsNotTheTrees) {
  BlockPool pool(2);
  PrefixTree tree(pool);
  Table table;
  ASSERT_TRUE(pool.acquire(1, table));
  pool.cache(0);
  EXPECT_DEATH(tree.check(), "cached blocks are not the tree's");
}

}  // namespace
}  // namespace crossdock
