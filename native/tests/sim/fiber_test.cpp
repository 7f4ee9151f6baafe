// Fibers give up their stacks in every way there is; the address sanitizer follows each.
#include "fiber.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

namespace crossdock::sim {
namespace {

// Uses `depth` frames of the stack it runs on, each with memory that a sanitizer guards.
int descend(int depth) {
  std::array<volatile int, 64> frame{};
  frame[depth % frame.size()] = depth;
  return depth == 0 ? 0 : frame[depth % frame.size()] - depth + 1 + descend(depth - 1);
}

TEST(FiberTest, KeepsItsFramesWhileOthersRun) {
  std::vector<int> order;
  const auto body = [&order](int id) {
    std::array<int, 256> frame{};
    frame.fill(id);
    for (int round = 0; round < 3; ++round) {
      order.push_back(frame[size_t(round) * 100]);
      EXPECT_EQ(descend(50), 50);
      Fiber::current()->yield();
    }
  };
  Fiber one([&] { body(1); });
  Fiber other([&] { body(2); });
  for (int round = 0; round < 4; ++round) {
    one.resume();
    EXPECT_EQ(descend(200), 200);
    other.resume();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 2, 1, 2}));
  EXPECT_TRUE(one.ended() && other.ended());
  EXPECT_EQ(Fiber::current(), nullptr);
}

TEST(FiberTest, UnwindsWhatIsCancelled) {
  const auto held = std::make_shared<int>(0);
  bool passed = false;
  {
    Fiber fiber([&] {
      const auto guest = held;
      try {
        Fiber::current()->yield();
        passed = true;
      } catch (const Fiber::Cancelled&) {
        EXPECT_EQ(descend(50), 50);
        throw;
      }
    });
    fiber.resume();
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(passed);
}

TEST(FiberTest, NeverBeginsWhatIsCancelledBefore) {
  bool begun = false;
  Fiber fiber([&] { begun = true; });
  fiber.cancel();
  EXPECT_TRUE(fiber.ended());
  EXPECT_FALSE(begun);
}

TEST(FiberTest, CatchesWithinABody) {
  int caught = 0;
  Fiber fiber([&] {
    for (int round = 0; round < 3; ++round) {
      try {
        if (descend(50) == 50) throw std::runtime_error("thrown on this stack");
      } catch (const std::runtime_error&) {
        ++caught;
      }
      Fiber::current()->yield();
    }
  });
  while (!fiber.ended()) fiber.resume();
  EXPECT_EQ(caught, 3);
}

// The frames that are left behind unwind no more; their memory serves others afterwards.
TEST(FiberTest, IsThrownAwayWithItsFrames) {
  for (int round = 0; round < 10; ++round) {
    Fiber fiber([] {
      std::array<volatile int, 1024> frame{};
      frame[1023] = 1;
      if (descend(20) == 20) Fiber::current()->escape();
    });
    fiber.resume();
    EXPECT_TRUE(fiber.ended());
    EXPECT_EQ(descend(200), 200);
  }
  EXPECT_EQ(Fiber::current(), nullptr);
}

}  // namespace
}  // namespace crossdock::sim
