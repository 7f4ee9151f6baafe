// The selection of a variant, and the small operations that all of them share.
#include "crossdock/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

TEST(Kernels, ExponentialIsWithinAnUlpOrTwo) {
  for (float x = -87.0f; x < 87.0f; x += 0.0137f) {
    const double expected = std::exp(static_cast<double>(x));
    EXPECT_NEAR(double{exp_f32(x)} / expected, 1.0, 2.4e-7) << x;
  }
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-1000.0f), 0.0f);
  EXPECT_EQ(exp_f32(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isfinite(exp_f32(1000.0f)));
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Kernels, Bf16RoundsToNearestEven) {
  EXPECT_EQ(round_bf16(1.0f), 0x3f80);
  EXPECT_EQ(round_bf16(1.0f + 0x1p-8f), 0x3f80);            // a tie: to even, down
  EXPECT_EQ(round_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  // a tie: to even, up
  EXPECT_EQ(round_bf16(1.0f + 0x1.1p-8f), 0x3f81);
  EXPECT_EQ(round_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(round_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(widen_bf16(round_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Kernels, RopeAnglesAreGoodToAnUlp) {
  const float frequencies[] = {1.0f, 0.25f, 0.0137f, 1e-4f};
  for (uint32_t position : {0u, 1u, 2u, 3u, 100u, 8191u, 131071u, 1000003u}) {
    float cosines[4], sines[4];
    rope_angles(position, frequencies, 4, cosines, sines);
    for (int i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      EXPECT_NEAR(cosines[i], std::cos(static_cast<double>(angle)), 6e-8) << position;
      EXPECT_NEAR(sines[i], std::sin(static_cast<double>(angle)), 6e-8) << position;
    }
  }
}

TEST(Kernels, SelectionIsByName) {
  EXPECT_STREQ(select_kernels("scalar").value()->name, "scalar");
  EXPECT_EQ(select_kernels("neon").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace crossdock::kernels
