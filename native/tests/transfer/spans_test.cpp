#include "../../src/transfer/spans.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "../../src/transfer/bulk_copy.h"

namespace crossdock {
namespace {

std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> tuples(const std::vector<CopySpan>& spans) {
  std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> result;
  for (const CopySpan& span : spans) {
    result.emplace_back(span.local_offset, span.remote_offset, span.length_bytes);
  }
  return result;
}

TEST(Spans, MergeJoinsWhatContinuesOnBothSides) {
  const auto merged = merge_spans({{0, 100, 10}, {10, 110, 5}, {15, 115, 1}});
  EXPECT_EQ(tuples(merged), tuples({{0, 100, 16}}));
}

TEST(Spans, MergeKeepsWhatContinuesOnOneSideOnly) {
  const std::vector<CopySpan> apart = {{0, 100, 10}, {10, 111, 5}, {20, 116, 5}};
  EXPECT_EQ(tuples(merge_spans(apart)), tuples(apart));
}

TEST(Spans, MergeJoinsWhatRunsBackwardsOnBothSides) {
  EXPECT_EQ(tuples(merge_spans({{20, 120, 4}, {10, 110, 10}, {0, 100, 10}})),
            tuples({{0, 100, 24}}));
  const std::vector<CopySpan> crossing = {{10, 100, 10}, {0, 110, 10}};
  EXPECT_EQ(tuples(merge_spans(crossing)), tuples(crossing));
}

TEST(Spans, MergeKeepsTheOrderOfWhatLiesApart) {
  const std::vector<CopySpan> apart = {{40, 140, 5}, {0, 100, 10}, {20, 120, 10}};
  EXPECT_EQ(tuples(merge_spans(apart)), tuples(apart));
}

TEST(Spans, MergeDropsEmptySpans) {
  EXPECT_TRUE(merge_spans({{5, 5, 0}}).empty());
  EXPECT_EQ(tuples(merge_spans({{0, 0, 4}, {9, 9, 0}, {4, 4, 4}})), tuples({{0, 0, 8}}));
}

TEST(Spans, CheckFindsTheFirstThatLeavesASegment) {
  EXPECT_TRUE(check_spans({{0, 0, 10}, {5, 5, 5}}, 10, 10).ok());
  EXPECT_TRUE(check_spans({{10, 10, 0}}, 10, 10).ok());
  const Status local = check_spans({{0, 0, 1}, {9, 0, 2}}, 10, 100);
  EXPECT_EQ(local.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(local.message().find("spans[1]"), std::string::npos);
  EXPECT_NE(local.message().find("local_offset 9"), std::string::npos) << local.message();
  const Status remote = check_spans({{0, 11, 0}}, 100, 10);
  EXPECT_NE(remote.message().find("remote_offset 11"), std::string::npos) << remote.message();
  EXPECT_FALSE(check_spans({{UINT64_MAX, 0, 2}}, UINT64_MAX, 10).ok());
}

TEST(BulkCopy, CopiesExactlyWhateverTheAlignment) {
  std::mt19937 random(5);
  std::vector<std::byte> source(20'000);
  for (std::byte& byte : source) byte = std::byte(random() & 0xff);
  for (int round = 0; round < 2'000; ++round) {
    const size_t from = random() % 200;
    const size_t to = random() % 200;
    const size_t bytes = round < 300 ? round : random() % 19'000;
    std::vector<std::byte> target(20'000, std::byte{0xee});
    std::vector<std::byte> expected = target;
    std::copy_n(source.begin() + from, bytes, expected.begin() + to);
    copy_bulk(target.data() + to, source.data() + from, bytes);
    ASSERT_EQ(target, expected) << from << " " << to << " " << bytes;
  }
}

}  // namespace
}  // namespace crossdock
