#include "crossdock/prefix/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace crossdock {
namespace {

// Random events against a std::map. The hashes come from a small set whose low 32 bits clash often
// and crowd around the end of the table, so that probes are long and wrap around.
TEST(PrefixIndex, AgreesWithAMap) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    PrefixIndex index;
    std::map<BlockHash, uint32_t> model;
    std::vector<BlockHash> hashes;  // by node
    const auto pick = [&] {
      const uint64_t low = (random() % 3 == 0) ? 0xffff'fff0 + random() % 16 : random() % 64;
      return BlockHash{low | (random() % 2) << 40, random() % 4};
    };
    const auto find = [&](const BlockHash& hash) {
      return index.find(hash, [&](uint32_t node) { return hashes[node] == hash; });
    };
    const uint64_t share_of_inserts = 4 + seed % 3;  // of 10
    for (int event = 0; event < 3000; ++event) {
      const BlockHash hash = pick();
      const auto it = model.find(hash);
      ASSERT_EQ(find(hash), it == model.end() ? PrefixIndex::kNone : it->second);
      if (it == model.end() && random() % 10 < share_of_inserts) {
        hashes.push_back(hash);
        index.insert(hash, static_cast<uint32_t>(hashes.size()) - 1);
        model[hash] = static_cast<uint32_t>(hashes.size()) - 1;
      } else if (it != model.end() && random() % 4 == 0) {
        hashes.push_back(hash);
        index.replace(hash, it->second, static_cast<uint32_t>(hashes.size()) - 1);
        it->second = static_cast<uint32_t>(hashes.size()) - 1;
      } else if (it != model.end()) {
        index.erase(hash, it->second);
        model.erase(it);
      }
      ASSERT_EQ(index.size(), model.size());
    }
    for (const auto& [hash, node] : model) ASSERT_EQ(find(hash), node);
  }
}

}  // namespace
}  // namespace crossdock
