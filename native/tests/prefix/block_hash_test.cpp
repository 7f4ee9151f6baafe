#include "crossdock/prefix/block_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <regex>
#include <set>

namespace crossdock {
namespace {

std::string hex(const BlockHash& hash) {
  unsigned char bytes[16];
  std::memcpy(bytes, &hash, 16);
  std::string text;
  char buffer[3];
  for (const unsigned char byte : bytes) {
    std::snprintf(buffer, sizeof(buffer), "%02x", byte);
    text += buffer;
  }
  return text;
}

template <typename T>
T from_hex(const std::string& text) {
  static_assert(sizeof(T) == 16);
  unsigned char bytes[16];
  for (size_t i = 0; i < 16; ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  T value;
  std::memcpy(&value, bytes, 16);
  return value;
}

std::vector<int32_t> ramp(int32_t first, int32_t step, size_t count = kBlockTokens) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + step * static_cast<int32_t>(i);
  return tokens;
}

// The vectors come from Python's hashlib, another implementation of BLAKE2b.
TEST(BlockHash, AgreesWithTheDocumentedVectors) {
  std::ifstream file(BLOCK_HASH_VECTORS);
  ASSERT_TRUE(file) << "cannot read " << BLOCK_HASH_VECTORS;
  const std::string hash = "([0-9a-f]{32})";
  const std::regex root("root salt=\"(.*)\" model=" + hash +
                        " adapter=\"(.*)\" numerics=\"(.*)\" = " + hash);
  const std::regex link("link parent=" + hash +
                        " first=(-?\\d+) step=(-?\\d+)(?: generated=(\\d+))? = " + hash);
  int num_roots = 0, num_links = 0;
  std::smatch m;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, m, root)) {
      ++num_roots;
      const std::string salt = m[1], adapter = m[3], numerics = m[4];
      EXPECT_EQ(hex(root_hash(salt, from_hex<Fingerprint>(m[2]), adapter, numerics)), m[5]) << line;
    } else if (std::regex_match(line, m, link)) {
      ++num_links;
      const auto tokens = ramp(std::stoi(m[2]), std::stoi(m[3]));
      const uint32_t num_generated = m[4].matched ? std::stoi(m[4]) : 0;
      EXPECT_EQ(hex(next_hash(from_hex<BlockHash>(m[1]), tokens, num_generated)), m[5]) << line;
    }
  }
  EXPECT_EQ(num_roots, 6);
  EXPECT_EQ(num_links, 7);
}

TEST(BlockHash, FieldsDoNotRunIntoEachOther) {
  std::set<BlockHash> roots;
  const Fingerprint model{};
  roots.insert(root_hash("", model, "ab", "c"));
  roots.insert(root_hash("", model, "a", "bc"));
  roots.insert(root_hash("", model, "", "abc"));
  roots.insert(root_hash("", model, "abc", ""));
  roots.insert(root_hash("abc", model, "", ""));
  EXPECT_EQ(roots.size(), 5u);
}

TEST(BlockHash, ExtendHashesOnlyWholeBlocksAndOnlyNewOnes) {
  const BlockHash root = root_hash("salt", Fingerprint{}, "", "n");
  const auto tokens = ramp(5, 3, 100);
  std::vector<BlockHash> whole;
  extend_chain(root, tokens, UINT32_MAX, whole);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(whole[0], next_hash(root, std::span(tokens).first(32)));
  EXPECT_EQ(whole[2], next_hash(whole[1], std::span(tokens).subspan(64, 32)));
  std::vector<BlockHash> grown;
  for (size_t n = 0; n <= tokens.size(); ++n) {
    extend_chain(root, std::span(tokens).first(n), UINT32_MAX, grown);
    ASSERT_EQ(grown.size(), n / 32);
  }
  EXPECT_EQ(grown, whole);
  // What is there already is believed, not computed again.
  std::vector<BlockHash> trusted = {BlockHash{1, 2}};
  extend_chain(root, tokens, UINT32_MAX, trusted);
  EXPECT_EQ(trusted[0], (BlockHash{1, 2}));
  EXPECT_EQ(trusted[1], next_hash(BlockHash{1, 2}, std::span(tokens).subspan(32, 32)));
}

// The blocks of a prompt are everyone's; from the first generated position on a chain is of its
// own, which the same tokens find as generated ones and no other way.
TEST(BlockHash, GeneratedPositionsAreApartFromAPrompts) {
  const BlockHash root = root_hash("salt", Fingerprint{}, "", "n");
  const auto tokens = ramp(5, 3, 160);
  const auto chain_of = [&](uint32_t first_generated) {
    std::vector<BlockHash> chain;
    extend_chain(root, tokens, first_generated, chain);
    return chain;
  };
  const auto prompt = chain_of(UINT32_MAX);
  EXPECT_EQ(chain_of(160), prompt);
  std::set<BlockHash> last;
  for (uint32_t first_generated = 1; first_generated <= 160; ++first_generated) {
    const auto chain = chain_of(first_generated);
    for (uint32_t block = 0; block < 5; ++block) {
      EXPECT_EQ(chain[block] == prompt[block], (block + 1) * kBlockTokens <= first_generated);
    }
    last.insert(chain.back());
  }
  EXPECT_EQ(last.size(), 160u);
}

TEST(BlockHash, EveryTokenAndTheParentCount) {
  const auto tokens = ramp(0, 1);
  const BlockHash hash = next_hash({}, tokens);
  EXPECT_NE(next_hash({1, 0}, tokens), hash);
  EXPECT_NE(next_hash({0, 1}, tokens), hash);
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto other = tokens;
    other[i] ^= 1 << 30;
    EXPECT_NE(next_hash({}, other), hash);
  }
}

}  // namespace
}  // namespace crossdock
