// Every variant of the products against the reference, bit by bit, over shapes that hit each tile
// and each tail; and the reference against arithmetic in double.
#include "crossdock/kernels/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "crossdock/kernels/kernels.h"
#include "floats.h"

namespace crossdock::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                                     WeightFormat::kInt8, WeightFormat::kInt4};

// The variants that run here, but for the reference.
std::vector<const Kernels*> variants() {
  std::vector<const Kernels*> found;
  for (const char* name : {"avx2", "avx512"}) {
    const auto kernels = select_kernels(name);
    if (kernels.ok()) found.push_back(kernels.value());
  }
  return found;
}

struct Shape {
  uint32_t outputs;
  uint32_t depth;
  uint32_t rows;
};

std::string name(const Shape& shape) {
  return std::to_string(shape.outputs) + " outputs, depth " + std::to_string(shape.depth) + ", " +
         std::to_string(shape.rows) + " rows";
}

// Random weights for a shape, as many as SwiGLU takes, packed; and activations, quantised too.
class Case {
 public:
  Case(const Shape& shape, WeightFormat format) : Case(shape, format, [](auto&, auto&) {}) {}

  // `edit` changes weights and activations before they are packed.
  template <typename Edit>
  Case(const Shape& shape, WeightFormat format, const Edit& edit)
      : shape_(shape),
        format_(format),
        x_stride_(shape.depth + 3),
        weights_(random_floats(size_t{num_panels()} * kPanelOutputs * shape.depth,
                               shape.outputs * 1000 + shape.depth, 0.1f)),
        x_(random_floats(shape.rows * x_stride_, shape.rows)),
        packed_(num_panels() * panel_bytes(format, shape.depth) + 64) {
    edit(weights_, x_);
    pack();
    quantise();
  }

  Product job(Epilogue epilogue) const {
    Product job{.x = x_.data(), .x_stride = x_stride_, .quantised = quantised_};
    job.num_rows = shape_.rows;
    job.tile_rows = product_tile_rows(shape_.depth);
    job.depth = shape_.depth;
    job.panels = panels();
    job.format = format_;
    job.epilogue = epilogue;
    job.num_outputs = shape_.outputs;
    job.y_stride = shape_.outputs + 5;
    return job;
  }
  const std::vector<float>& weights() const { return weights_; }
  const std::vector<float>& x() const { return x_; }
  size_t x_stride() const { return x_stride_; }
  std::byte* panels() const {
    auto* at = const_cast<std::byte*>(packed_.data());
    return at + (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64;
  }

 private:
  uint32_t num_panels() const { return 2 * ((shape_.outputs + kPanelOutputs - 1) / kPanelOutputs); }
  void pack() {
    for (uint32_t panel = 0; panel < num_panels(); ++panel) {
      const float* rows[kPanelOutputs];
      for (uint32_t i = 0; i < kPanelOutputs; ++i) {
        rows[i] = weights_.data() + (size_t{panel} * kPanelOutputs + i) * shape_.depth;
      }
      pack_panel(format_, rows, shape_.depth,
                 panels() + panel * panel_bytes(format_, shape_.depth));
    }
  }
  void quantise() {
    const uint32_t groups = num_groups(shape_.depth);
    values_.resize(size_t{shape_.rows} * groups * kGroup);
    scales_.resize(shape_.rows);
    sums_.resize(size_t{shape_.rows} * groups);
    quantised_ = {values_.data(), scales_.data(), sums_.data(), groups};
    for (uint32_t row = 0; row < shape_.rows; ++row) {
      quantise_row(x_.data() + row * x_stride_, shape_.depth, row, quantised_);
    }
  }

  Shape shape_;
  WeightFormat format_;
  size_t x_stride_;
  std::vector<float> weights_;
  std::vector<float> x_;
  std::vector<std::byte> packed_;
  std::vector<int16_t> values_;
  std::vector<float> scales_;
  std::vector<float> sums_;
  QuantisedRows quantised_;
};

// y of the whole product, cut into pieces of `grain` units.
std::vector<float> multiply(const Kernels& kernels, Product job, uint32_t grain) {
  std::vector<float> y = random_floats(size_t{job.num_rows} * job.y_stride, 9);
  std::vector<float> scratch(product_scratch_floats(job.depth));
  job.y = y.data();
  for (uint32_t unit = 0; unit < job.num_units(); unit += grain) {
    kernels.product(job, unit, std::min(unit + grain, job.num_units()), scratch.data());
  }
  return y;
}

void expect_the_references_bits(const Case& of, const Shape& shape, WeightFormat format) {
  for (const auto epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiGlu}) {
    const Product job = of.job(epilogue);
    const auto expected = multiply(scalar_kernels(), job, 1);
    for (const Kernels* kernels : variants()) {
      for (const uint32_t grain : {1u, 3u, 100u}) {
        EXPECT_TRUE(same_bits(multiply(*kernels, job, grain), expected))
            << kernels->name << ", " << name(shape) << ", epilogue " << static_cast<int>(epilogue)
            << ", format " << static_cast<int>(format) << ", grain " << grain;
      }
    }
  }
}

TEST(Product, IsTheReferencesBits) {
  std::vector<Shape> shapes;
  for (const uint32_t outputs : {1u, 15u, 16u, 17u, 48u, 100u}) {
    for (const uint32_t depth : {1u, 8u, 37u, 129u, 300u}) {
      for (const uint32_t rows : {1u, 2u, 3u, 4u, 7u, 13u})
        shapes.push_back({outputs, depth, rows});
    }
  }
  for (uint32_t rows = 1; rows <= 29; ++rows) shapes.push_back({33, 96, rows});
  for (uint32_t depth = 1; depth <= 300; ++depth) shapes.push_back({16, depth, 1 + depth % 5});
  for (const uint32_t depth : {576u, 1536u, 4096u}) {
    shapes.push_back({40, depth, 1});
    shapes.push_back({40, depth, 6});
  }
  shapes.push_back({17, 300, 200});  // more rows than a tile holds
  shapes.push_back({17, 4096, 29});
  for (const Shape& shape : shapes) {
    for (const auto format : kFormats) {
      expect_the_references_bits(Case(shape, format), shape, format);
    }
  }
}

TEST(Product, StrangeNumbersAreTheReferencesBits) {
  const float strange[] = {kNan,  kInfinity, -kInfinity, 0x1p-149f, -0x1.8p-130f,
                           -0.0f, 0x1p-70f,  3e38f,      1e-36f,    0x1p-20f};
  const auto sprinkle = [&](std::vector<float>& values, size_t step) {
    size_t i = 0;
    for (size_t at = 0; at < values.size(); at += step) values[at] = strange[i++ % 10];
  };
  for (const Shape shape : {Shape{48, 70, 1}, Shape{48, 70, 5}, Shape{33, 300, 29}}) {
    for (const auto format : kFormats) {
      const Case of_x(shape, format, [&](auto&, auto& x) { sprinkle(x, 41); });
      expect_the_references_bits(of_x, shape, format);
      const Case of_weights(shape, format, [&](auto& weights, auto&) { sprinkle(weights, 401); });
      expect_the_references_bits(of_weights, shape, format);
      // Rows and weights of subnormals alone, whose products vanish or nearly do.
      const Case tiny(shape, format, [](auto& weights, auto& x) {
        for (auto& value : weights) value *= 0x1p-60f;
        for (auto& value : x) value *= 0x1p-75f;
      });
      expect_the_references_bits(tiny, shape, format);
    }
  }
}

TEST(Product, IsWithinRoundingOfTheUnpackedWeights) {
  const Shape shape{48, 300, 4};
  for (const auto format : kFormats) {
    const Case of(shape, format);
    const auto y = multiply(scalar_kernels(), of.job(Epilogue::kStore), 2);
    std::vector<float> weights(shape.depth);
    for (uint32_t output = 0; output < shape.outputs; ++output) {
      unpack_output(of.panels(), format, shape.depth, output, weights.data());
      for (uint32_t row = 0; row < shape.rows; ++row) {
        const float* x = of.x().data() + row * of.x_stride();
        double sum = 0, size = 0, max = 0;
        for (uint32_t k = 0; k < shape.depth; ++k) {
          sum += double{x[k]} * weights[k];
          size += std::fabs(double{x[k]} * weights[k]);
          max = std::max(max, std::fabs(double{x[k]}));
        }
        double bound = shape.depth * 0x1p-24 * size;
        if (is_integer(format)) {  // half a step of the activations
          for (const float weight : weights) bound += std::fabs(weight) * max / 65534;
        }
        EXPECT_NEAR(y[row * (shape.outputs + 5) + output], sum, bound)
            << "format " << static_cast<int>(format);
      }
    }
  }
}

// Chains start at zero in each stretch or group, and none sees what lies past the depth.
TEST(Product, IgnoresWhatLiesPastTheDepth) {
  const Shape shape{16, 37, 3};
  for (const auto format : kFormats) {
    const Case plain(shape, format);
    const Case edited(shape, format, [&](auto&, auto& x) {
      for (uint32_t row = 0; row < shape.rows; ++row) {
        for (uint32_t k = shape.depth; k < shape.depth + 3; ++k)
          x[row * (shape.depth + 3) + k] = kNan;
      }
    });
    for (const char* kernels : {"scalar", "auto"}) {
      const Kernels& variant = *select_kernels(kernels).value();
      EXPECT_TRUE(same_bits(multiply(variant, plain.job(Epilogue::kStore), 1),
                            multiply(variant, edited.job(Epilogue::kStore), 1)));
    }
  }
}

}  // namespace
}  // namespace crossdock::kernels
