// The tree against an oracle that knows blocks, not runs: a map from hash to block, parent and last
// use. Random worlds with deep chains, and every sequence of events of a small one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "crossdock/prefix/prefix_tree.h"

namespace crossdock {
namespace {

using Table = std::vector<BlockId>;
using Chain = std::vector<BlockHash>;

class World {
 public:
  World(uint32_t num_blocks, uint32_t held_max)
      : held_max_(held_max), pool_(num_blocks), tree_(pool_) {}

  // Each event compares what the tree returns with what the oracle expects.
  bool match(const Chain& chain) {
    if (held_.size() >= held_max_) return false;
    Table expected, got;
    ++now_;
    for (const BlockHash& hash : chain) {
      const auto it = oracle_.find(hash);
      if (it == oracle_.end()) break;
      it->second.used = now_;
      expected.push_back(it->second.block);
    }
    EXPECT_EQ(tree_.match_length(chain), expected.size());
    EXPECT_EQ(tree_.match(chain, now_ / 3, got), expected.size());
    EXPECT_EQ(got, expected);
    held_.push_back(std::move(got));
    return true;
  }

  // A sequence that computed the chain publishes it. Its first `num_shared` blocks are those of the
  // tree where resident; the others are its own, even where they duplicate.
  bool insert(const Chain& chain, size_t num_shared) {
    if (held_.size() >= held_max_) return false;
    Table table;
    for (size_t i = 0; i < std::min(num_shared, chain.size()); ++i) {
      const auto it = oracle_.find(chain[i]);
      if (it == oracle_.end()) break;
      table.push_back(it->second.block);
    }
    const auto num_own = static_cast<uint32_t>(chain.size() - table.size());
    if (pool_.num_free() < num_own) return false;
    for (const BlockId block : table) pool_.reference(block);
    EXPECT_TRUE(pool_.acquire(num_own, table));
    uint32_t expected = 0;
    ++now_;
    std::optional<BlockHash> parent;
    for (size_t i = 0; i < chain.size(); ++i) {
      const auto [it, is_new] = oracle_.try_emplace(chain[i], Entry{table[i], parent, now_});
      it->second.used = now_;
      expected += is_new;
      parent = chain[i];
    }
    EXPECT_EQ(tree_.insert(chain, table, now_ / 3), expected);
    held_.push_back(std::move(table));
    return true;
  }

  bool release(size_t which) {
    if (which >= held_.size()) return false;
    for (const BlockId block : held_[which]) pool_.unreference(block);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(which));
    return true;
  }

  bool evict(uint32_t count) {
    Chain expected, got;
    while (expected.size() < count) {
      auto victim = oracle_.end();
      for (auto it = oracle_.begin(); it != oracle_.end(); ++it) {
        const bool evictable = pool_.references(it->second.block) == 0 && !has_child(it->first);
        if (evictable && (victim == oracle_.end() || it->second.used < victim->second.used)) {
          victim = it;
        }
      }
      if (victim == oracle_.end()) break;
      expected.push_back(victim->first);
      oracle_.erase(victim);
    }
    EXPECT_EQ(tree_.evict(count, &got), expected.size());
    EXPECT_EQ(got, expected);
    return true;
  }

  void check() const {
    std::vector<std::span<const BlockId>> tables(held_.begin(), held_.end());
    pool_.check(tables);
    tree_.check();
    ASSERT_EQ(tree_.num_blocks(), oracle_.size());
  }

  size_t num_held() const { return held_.size(); }

 private:
  struct Entry {
    BlockId block;
    std::optional<BlockHash> parent;
    uint64_t used;
  };

  bool has_child(const BlockHash& hash) const {
    return std::any_of(oracle_.begin(), oracle_.end(),
                       [&](const auto& entry) { return entry.second.parent == hash; });
  }

  size_t held_max_;
  BlockPool pool_;
  PrefixTree tree_;
  std::map<BlockHash, Entry> oracle_;
  std::vector<Table> held_;
  uint64_t now_ = 0;
};

BlockHash link(const BlockHash& parent, uint64_t symbol) {
  const uint64_t mixed =
      (parent.low ^ (symbol + 1) * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL;
  return {mixed ^ (mixed >> 31), parent.high * 31 + symbol + 1};
}

class PrefixTreeRandom : public testing::TestWithParam<uint64_t> {};

TEST_P(PrefixTreeRandom, AgreesWithTheOracle) {
  std::mt19937_64 random(GetParam());
  World world(100 + GetParam() % 3 * 100, 8);
  const uint64_t num_symbols = 1 + GetParam() % 3;
  std::vector<Chain> known;
  const auto chain = [&] {
    Chain result;
    if (!known.empty() && random() % 8 != 0) {  // most are prefixes of known ones, or fork off them
      result = known[random() % known.size()];
      result.resize(random() % (result.size() + 1));
    }
    const size_t length = std::min<size_t>(60, result.size() + random() % 20);
    while (result.size() < length) {
      // Rare symbols, so that chains share long runs and still fork.
      const uint64_t symbol = random() % 8 == 0 ? random() % num_symbols + 1 : 0;
      result.push_back(link(result.empty() ? BlockHash{} : result.back(), symbol));
    }
    if (known.size() < 12) known.push_back(result);
    known[random() % known.size()] = result;
    return result;
  };
  for (int event = 0; event < 1500; ++event) {
    switch (random() % 8) {
      case 0:
      case 1: world.match(chain()); break;
      case 2:
      case 3: world.insert(chain(), random() % 2 ? 1000 : random() % 20); break;
      case 4:
      case 5: world.release(world.num_held() ? random() % world.num_held() : 0); break;
      case 6: world.evict(static_cast<uint32_t>(random() % 30)); break;
      default: world.evict(1); break;
    }
    world.check();
    if (HasFailure()) FAIL() << "after event " << event << " of seed " << GetParam();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PrefixTreeRandom, testing::Range<uint64_t>(0, 60));

// Chains a, ab, abc and ad over three blocks, at most two tables held.
TEST(PrefixTreeSmallWorld, EverySequenceOfSixEventsOverThreeBlocks) {
  const BlockHash a = link({}, 0), b = link(a, 0), c = link(b, 0), d = link(a, 1);
  const std::vector<Chain> chains = {{a}, {a, b}, {a, b, c}, {a, d}};
  constexpr int kNumEvents = 12;
  const auto apply = [&](World& world, int event) {
    if (event < 4) return world.insert(chains[event], 1000);
    if (event < 5) return world.insert(chains[1], 0);  // duplicates
    if (event < 8) return world.match(chains[event - 4]);
    if (event < 10) return world.release(event - 8);
    return world.evict(event == 10 ? 1 : 2);
  };
  uint64_t num_worlds = 0;
  std::vector<int> events;
  // Depth first; a world is made anew by replaying its events, and checked after the last.
  const auto explore = [&](auto&& self) -> void {
    World world(3, 2);
    bool legal = true;
    for (const int event : events) legal = legal && apply(world, event);
    if (!legal) return;
    ++num_worlds;
    world.check();
    if (testing::Test::HasFailure()) {
      std::string trace;
      for (const int event : events) trace += std::to_string(event) + " ";
      FAIL() << "events " << trace;
    }
    if (events.size() == 6) return;
    for (int event = 0; event < kNumEvents && !testing::Test::HasFailure(); ++event) {
      events.push_back(event);
      self(self);
      events.pop_back();
    }
  };
  explore(explore);
  EXPECT_GT(num_worlds, 10'000u);
}

}  // namespace
}  // namespace crossdock
