// Random calls against a naive oracle that keeps whole lists and searches them, over many seeds;
// check() after every call.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "crossdock/tiers/block_store.h"

namespace crossdock {
namespace {

constexpr uint32_t kNumBlocks = 20;
constexpr uint64_t kNumKeys = 40;
constexpr uint32_t kHighBlocks = 17;  // 0.88 of 20
constexpr uint32_t kLowBlocks = 16;   // 0.80 of 20
constexpr uint32_t kQuarantineMax = 5;

struct OracleBlock {
  uint64_t key = 0;
  uint32_t slot = 0;
  uint64_t generation = 0;
  uint64_t checksum = 0;
  uint32_t pins = 0;
  bool retired = false;
};
struct OracleLease {
  LeaseId id = 0;
  bool writes = false;
  bool expired = false;
  uint64_t owner = 0;
  uint64_t deadline = 0;
  std::vector<OracleBlock> blocks;
};

// Knows the blocks published, least recently used first, and the leases.
class Oracle {
 public:
  std::vector<OracleBlock> published;
  std::vector<OracleLease> leases;
  uint64_t evicted = 0;

  OracleBlock* find(uint64_t key) {
    for (auto& b : published) {
      if (b.key == key && !b.retired) return &b;
    }
    return nullptr;
  }
  bool being_written(uint64_t key) const {
    for (const auto& lease : leases) {
      if (!lease.writes || lease.expired) continue;
      for (const auto& b : lease.blocks) {
        if (b.key == key) return true;
      }
    }
    return false;
  }
  OracleLease* lease(LeaseId id) {
    for (auto& l : leases) {
      if (l.id == id) return &l;
    }
    return nullptr;
  }
  uint32_t used() const {
    uint32_t count = static_cast<uint32_t>(published.size());
    for (const auto& l : leases) count += l.writes ? static_cast<uint32_t>(l.blocks.size()) : 0;
    return count;
  }
  uint32_t quarantined() const {
    uint32_t count = 0;
    for (const auto& l : leases) count += l.expired ? static_cast<uint32_t>(l.blocks.size()) : 0;
    return count;
  }
  uint32_t match(const std::vector<uint64_t>& chain) {
    uint32_t n = 0;
    while (n < chain.size() && find(chain[n]) != nullptr) ++n;
    return n;
  }
  void most_recent(uint64_t key) {
    const auto it = std::find_if(published.begin(), published.end(),
                                 [&](const auto& b) { return b.key == key && !b.retired; });
    std::rotate(it, it + 1, published.end());
  }
  // Which blocks a reservation would get room for.
  std::vector<uint64_t> reserve(const std::vector<uint64_t>& chain) {
    std::vector<uint64_t> wanted;
    for (size_t i = chain.size(); i-- > 0;) {
      if (OracleBlock* b = find(chain[i]); b != nullptr && b->pins == 0) most_recent(chain[i]);
    }
    for (const uint64_t key : chain) {
      const bool known = find(key) != nullptr || being_written(key);
      if (!known && std::find(wanted.begin(), wanted.end(), key) == wanted.end()) {
        wanted.push_back(key);
      }
    }
    if (!wanted.empty() && used() + wanted.size() > kHighBlocks) {
      for (auto it = published.begin();
           it != published.end() && used() + wanted.size() > kLowBlocks;) {
        const bool named = std::find(chain.begin(), chain.end(), it->key) != chain.end();
        if (it->pins > 0 || it->retired || named) {
          ++it;
        } else {
          it = published.erase(it);
          ++evicted;
        }
      }
    }
    wanted.resize(std::min<size_t>(wanted.size(), kNumBlocks - used()));
    return wanted;
  }
  void unpin(const OracleLease& lease) {
    for (size_t i = lease.blocks.size(); i-- > 0;) {
      const auto it = std::find_if(published.begin(), published.end(), [&](const auto& b) {
        return b.slot == lease.blocks[i].slot && b.generation == lease.blocks[i].generation;
      });
      ASSERT_NE(it, published.end());
      if (--it->pins > 0) continue;
      if (it->retired) {
        published.erase(it);
      } else {
        std::rotate(it, it + 1, published.end());
      }
    }
  }
  void end(LeaseId id) {
    const OracleLease gone = *lease(id);
    std::erase_if(leases, [&](const auto& l) { return l.id == id; });
    if (!gone.writes) unpin(gone);
  }
  void expire(LeaseId id) {
    OracleLease* l = lease(id);
    if (l->writes) {
      l->expired = true;
    } else {
      end(id);
    }
  }
};

ContentKey content(uint64_t key) { return {key, key * 7}; }

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    BlockStoreConfig config;
    config.num_blocks = kNumBlocks;
    store_.emplace(config);
  }

  void step() {
    switch (pick(12)) {
      case 0:
      case 1:
      case 2: reserve(); break;
      case 3:
      case 4: commit(); break;
      case 5:
      case 6: acquire(); break;
      case 7: release(); break;
      case 8: drop(); break;
      case 9: renew(); break;
      case 10: pass_time(); break;
      case 11: end_owner(); break;
    }
    compare();
  }

 private:
  uint64_t pick(uint64_t n) { return random_() % n; }
  std::vector<uint64_t> random_chain() {
    std::vector<uint64_t> chain;
    const uint64_t first = pick(4) * 10;
    const uint64_t count = 1 + pick(10);
    for (uint64_t i = 0; i < count; ++i) chain.push_back((first + i) % kNumKeys);
    return chain;
  }
  static std::vector<ContentKey> contents(const std::vector<uint64_t>& chain) {
    std::vector<ContentKey> result;
    for (const uint64_t key : chain) result.push_back(content(key));
    return result;
  }
  LeaseTerms terms() { return {pick(3), 1 + pick(30)}; }
  OracleLease* random_lease() {
    return oracle_.leases.empty() ? nullptr : &oracle_.leases[pick(oracle_.leases.size())];
  }

  void reserve() {
    const auto chain = random_chain();
    const LeaseTerms t = terms();
    const auto got = store_->reserve(contents(chain), t, tick_);
    if (oracle_.quarantined() > kQuarantineMax) {
      ASSERT_EQ(got.status().code(), StatusCode::kResourceExhausted);
      return;
    }
    const auto expected = oracle_.reserve(chain);
    ASSERT_TRUE(got.ok());
    ASSERT_EQ(got.value().blocks.size(), expected.size());
    ASSERT_EQ(got.value().lease_id != 0, !expected.empty());
    if (expected.empty()) return;
    OracleLease lease{got.value().lease_id, true, false, t.owner_epoch, tick_ + t.ttl_ticks, {}};
    for (size_t i = 0; i < expected.size(); ++i) {
      const StoredBlock& block = got.value().blocks[i];
      ASSERT_EQ(block.key, content(expected[i]));
      ASSERT_GT(block.generation, generations_[block.slot]) << "a use of a slot looks like another";
      generations_[block.slot] = block.generation;
      lease.blocks.push_back({expected[i], block.slot, block.generation, 0, 0, false});
    }
    oracle_.leases.push_back(lease);
  }

  void commit() {
    OracleLease* lease = random_lease();
    if (lease == nullptr) return;
    std::vector<Publication> publications;
    std::vector<OracleBlock> named;
    for (const OracleBlock& b : lease->blocks) {
      if (pick(3) == 0) continue;
      const uint64_t checksum = random_();
      publications.push_back({content(b.key), {checksum, 0}});
      named.push_back(b);
      named.back().checksum = checksum;
    }
    const auto got = store_->commit(lease->id, publications);
    ASSERT_EQ(got.ok(), lease->writes && !lease->expired);
    if (!lease->writes) return;
    if (got.ok()) {
      ASSERT_EQ(got.value(), named.size());
      for (size_t i = named.size(); i-- > 0;) oracle_.published.push_back(named[i]);
    }
    for (const OracleBlock& b : named) {
      std::erase_if(lease->blocks, [&](const auto& held) { return held.key == b.key; });
    }
    if (lease->blocks.empty()) oracle_.end(lease->id);
  }

  void acquire() {
    const auto chain = random_chain();
    const LeaseTerms t = terms();
    const uint32_t expected = oracle_.match(chain);
    ASSERT_EQ(store_->match(contents(chain)), expected);
    const auto got = store_->acquire(contents(chain), t, tick_);
    ASSERT_TRUE(got.ok());
    ASSERT_EQ(got.value().blocks.size(), expected);
    if (expected == 0) return;
    OracleLease lease{got.value().lease_id, false, false, t.owner_epoch, tick_ + t.ttl_ticks, {}};
    for (uint32_t i = 0; i < expected; ++i) {
      OracleBlock* b = oracle_.find(chain[i]);
      const StoredBlock& block = got.value().blocks[i];
      ASSERT_EQ(block, (StoredBlock{content(b->key), b->slot, b->generation, {b->checksum, 0}}));
      ++b->pins;
      lease.blocks.push_back(*b);
    }
    oracle_.leases.push_back(lease);
  }

  void release() {
    OracleLease* lease = random_lease();
    ASSERT_FALSE(store_->release(1'000'000));
    if (lease == nullptr) return;
    ASSERT_TRUE(store_->release(lease->id));
    oracle_.end(lease->id);
  }

  void drop() {
    const uint64_t key = pick(kNumKeys);
    OracleBlock* b = oracle_.find(key);
    const uint64_t generation = b == nullptr ? 0 : b->generation + (pick(3) == 0 ? 1 : 0);
    const bool hit = b != nullptr && generation == b->generation;
    ASSERT_EQ(store_->drop(content(key), generation), hit);
    if (!hit) return;
    if (b->pins > 0) {
      b->retired = true;
    } else {
      std::erase_if(oracle_.published, [&](const auto& p) { return p.key == key && !p.retired; });
    }
  }

  void renew() {
    OracleLease* lease = random_lease();
    if (lease == nullptr) return;
    const uint64_t ttl = 1 + pick(30);
    ASSERT_EQ(store_->renew(lease->id, ttl, tick_), !lease->expired);
    if (!lease->expired) lease->deadline = tick_ + ttl;
  }

  void pass_time() {
    tick_ += pick(15);
    store_->expire(tick_);
    std::vector<std::pair<uint64_t, LeaseId>> due;
    for (const auto& l : oracle_.leases) {
      if (!l.expired && l.deadline <= tick_) due.emplace_back(l.deadline, l.id);
    }
    std::sort(due.begin(), due.end());
    for (const auto& entry : due) oracle_.expire(entry.second);
  }

  void end_owner() {
    const uint64_t owner = pick(3);
    const bool proof = pick(2) == 0;
    proof ? store_->owner_gone(owner) : store_->revoke_owner(owner);
    std::vector<LeaseId> concerned;
    for (const auto& l : oracle_.leases) {
      if (l.owner == owner && (proof || !l.expired)) concerned.push_back(l.id);
    }
    std::sort(concerned.begin(), concerned.end());
    for (const LeaseId id : concerned) proof ? oracle_.end(id) : oracle_.expire(id);
  }

  void compare() {
    store_->check();
    const BlockStoreStatistics statistics = store_->statistics();
    ASSERT_EQ(statistics.num_free, kNumBlocks - oracle_.used());
    ASSERT_EQ(statistics.num_quarantined, oracle_.quarantined());
    ASSERT_EQ(statistics.num_leases, oracle_.leases.size());
    ASSERT_EQ(statistics.evicted_blocks, oracle_.evicted);
    uint64_t next = UINT64_MAX;
    for (const auto& l : oracle_.leases) next = l.expired ? next : std::min(next, l.deadline);
    ASSERT_EQ(store_->next_tick(), next);
    // No slot that may still be written or is still read has a second use.
    std::vector<uint32_t> holders(kNumBlocks, 0);
    for (const auto& b : oracle_.published) ++holders[b.slot];
    for (const auto& l : oracle_.leases) {
      for (const auto& b : l.blocks) holders[b.slot] += l.writes ? 1 : 0;
    }
    for (const uint32_t count : holders) ASSERT_LE(count, 1u);
  }

  std::mt19937_64 random_;
  std::optional<BlockStore> store_;
  Oracle oracle_;
  std::array<uint64_t, kNumBlocks> generations_{};
  uint64_t tick_ = 0;
};

TEST(BlockStoreModel, AgreesWithTheOracle) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    for (int step = 0; step < 1000 && !::testing::Test::HasFatalFailure(); ++step) world.step();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace crossdock
