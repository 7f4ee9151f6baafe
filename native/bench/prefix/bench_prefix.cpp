// Prefix tree: what a prompt of 4,096 tokens costs against a tree of 100,000 blocks.
// Prints one JSON line a case; values are medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "crossdock/prefix/prefix_tree.h"

namespace crossdock {
namespace {

constexpr uint32_t kPromptTokens = 4096;
constexpr uint32_t kPromptBlocks = kPromptTokens / kBlockTokens;
constexpr uint32_t kTreeBlocks = 100'000;
constexpr uint32_t kPoolBlocks = kTreeBlocks + 1024;
constexpr uint32_t kNumPrompts = kTreeBlocks / kPromptBlocks;
constexpr uint32_t kRepetitions = 4000;

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void print(const char* name, double value, double limit) {
  std::printf("{\"bench\": \"prefix\", \"case\": \"%s\", \"value\": %.3f, \"unit\": \"us\"", name,
              value);
  // A time meets its goal where the ratio is at least 1.
  if (limit > 0) {
    std::printf(", \"limit\": %g, \"limit_is\": \"goal\", \"ratio\": %.2f", limit, limit / value);
  }
  std::printf("}\n");
}

class PrefixBench {
 public:
  PrefixBench() : pool_(kPoolBlocks), tree_(pool_), random_(1) {
    root_ = root_hash("salt", Fingerprint{}, "", "bench");
    for (uint32_t i = 0; i < kNumPrompts; ++i) {
      prompts_.push_back(random_prompt());
      chains_.emplace_back();
      extend_chain(root_, prompts_.back(), UINT32_MAX, chains_.back());
      insert(chains_.back());
    }
  }

  void run() {
    std::vector<double> hash, match, both, miss, insert_new, evict;
    std::vector<BlockId> blocks;
    std::vector<BlockHash> chain;
    blocks.reserve(kPromptBlocks);
    chain.reserve(kPromptBlocks);
    for (uint32_t i = 0; i < kRepetitions; ++i) {
      // The prompts come in a random order, so that none of the tree's memory is warm by habit.
      const uint32_t which = static_cast<uint32_t>(random_() % kNumPrompts);
      auto start = Clock::now();
      tree_.match(chains_[which], ++tick_, blocks);
      match.push_back(microseconds_since(start));
      release(blocks);

      const uint32_t other = static_cast<uint32_t>(random_() % kNumPrompts);
      chain.clear();
      start = Clock::now();
      extend_chain(root_, prompts_[other], UINT32_MAX, chain);
      const double hashed = microseconds_since(start);
      tree_.match(chain, ++tick_, blocks);
      both.push_back(microseconds_since(start));
      hash.push_back(hashed);
      release(blocks);
    }
    for (uint32_t i = 0; i < kRepetitions / 4; ++i) {
      chain.clear();
      extend_chain(root_, random_prompt(), UINT32_MAX, chain);
      auto start = Clock::now();
      tree_.match(chain, ++tick_, blocks);
      miss.push_back(microseconds_since(start));
      start = Clock::now();
      tree_.evict(kPromptBlocks);
      evict.push_back(microseconds_since(start));
      pool_.acquire(kPromptBlocks, blocks);
      start = Clock::now();
      tree_.insert(chain, blocks, ++tick_);
      insert_new.push_back(microseconds_since(start));
      release(blocks);
    }
    print("match 128 of 100k blocks, from hashes", median(match), 5);
    print("match 4096 tokens, from token ids", median(both), 60);
    print("hash 4096 tokens", median(hash), 0);
    print("match on a miss", median(miss), 0);
    print("insert 128 new blocks", median(insert_new), 0);
    print("evict 128 blocks", median(evict), 0);
  }

 private:
  std::vector<int32_t> random_prompt() {
    std::vector<int32_t> prompt(kPromptTokens);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random_() % 49152);
    return prompt;
  }
  void insert(const std::vector<BlockHash>& chain) {
    std::vector<BlockId> blocks;
    pool_.acquire(kPromptBlocks, blocks);
    tree_.insert(chain, blocks, ++tick_);
    release(blocks);
  }
  void release(std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) pool_.unreference(block);
    blocks.clear();
  }

  BlockPool pool_;
  PrefixTree tree_;
  std::mt19937_64 random_;
  BlockHash root_;
  uint64_t tick_ = 0;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<BlockHash>> chains_;
};

}  // namespace
}  // namespace crossdock

int main() {
  crossdock::PrefixBench().run();
  return 0;
}
