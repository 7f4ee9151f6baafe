#include "matrix_plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>

#include "crossdock/kernels/math.h"

namespace crossdock {
namespace {

using kernels::kPanelOutputs;
using kernels::WeightFormat;

uint32_t panels_of(uint32_t num_outputs) {
  return (num_outputs + kPanelOutputs - 1) / kPanelOutputs;
}

WeightFormat format_of(const Tensor& tensor) {
  if (tensor.dtype == "BF16") return WeightFormat::kBf16;
  return tensor.dtype == "F8_E4M3" ? WeightFormat::kFp8 : WeightFormat::kF32;
}

// The format that holds every value of the checkpoint.
WeightFormat holding_format(const MatrixPlan& plan) {
  const WeightFormat format = format_of(*plan.parts[0].tensor);
  for (const auto& part : plan.parts) {
    if (format_of(*part.tensor) != format) return WeightFormat::kF32;
  }
  const bool computed = plan.role == MatrixRole::kLatent && format == WeightFormat::kFp8;
  return computed ? WeightFormat::kF32 : format;
}

// One output of a panel; no part: padding.
struct Source {
  const MatrixPart* part = nullptr;
  uint32_t output = 0;
};

Source source_of(const MatrixPlan& plan, uint32_t panel, uint32_t lane) {
  if (plan.interleaved) {
    const MatrixPart& part = plan.parts[panel % 2];
    const uint32_t output = panel / 2 * kPanelOutputs + lane;
    return output < part.num_outputs ? Source{&part, output} : Source{};
  }
  uint32_t output = panel * kPanelOutputs + lane;
  for (const auto& part : plan.parts) {
    if (output < part.num_outputs) return {&part, output};
    output -= part.num_outputs;
  }
  return {};
}

bool all_finite(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  return largest < 0x7f800000u;
}

bool has_nan_code(const uint8_t* codes, size_t count) {
  bool found = false;
  for (size_t i = 0; i < count; ++i) found |= (codes[i] & 0x7f) == 0x7f;
  return found;
}

// Packs panels on one thread, with its scratch.
class PanelPacker {
 public:
  explicit PanelPacker(const MatrixPlan& plan)
      : plan_(plan), depth_(plan.to->depth), copies_fp8_(plan.copies_fp8()) {
    const size_t stretches = (depth_ + kernels::kFp8Stretch - 1) / kernels::kFp8Stretch;
    line_floats_ = copies_fp8_ ? stretches : depth_;
    scratch_.resize(kPanelOutputs * line_floats_);
  }

  // Null, or the tensor that cannot be packed.
  const Tensor* pack(uint32_t panel, std::byte* to) {
    return copies_fp8_ ? copy_fp8(panel, to) : convert(panel, to);
  }

 private:
  const Tensor* copy_fp8(uint32_t panel, std::byte* to) {
    const uint8_t* rows[kPanelOutputs] = {};
    const float* scales[kPanelOutputs] = {};
    for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
      const Source source = source_of(plan_, panel, lane);
      if (source.part == nullptr) continue;
      const MatrixPart& part = *source.part;
      rows[lane] = reinterpret_cast<const uint8_t*>(part.tensor->bytes.data()) +
                   (part.first_row + source.output) * depth_;
      float* line = scratch_.data() + lane * line_floats_;
      copy_scales(part, source.output, depth_, line);
      scales[lane] = line;
      if (has_nan_code(rows[lane], depth_)) return part.tensor;
      if (!all_finite(line, line_floats_)) return part.scales;
    }
    kernels::pack_fp8_panel(rows, scales, depth_, to);
    return nullptr;
  }

  const Tensor* convert(uint32_t panel, std::byte* to) {
    const WeightFormat format = plan_.to->format;
    const bool keeps_all = format == WeightFormat::kF32 || format == WeightFormat::kBf16;
    const float* rows[kPanelOutputs] = {};
    for (uint32_t lane = 0; lane < kPanelOutputs; ++lane) {
      const Source source = source_of(plan_, panel, lane);
      if (source.part == nullptr) continue;
      float* line = scratch_.data() + lane * line_floats_;
      widen_output(*source.part, source.output, depth_, line);
      rows[lane] = line;
      const bool checked = !keeps_all || source.part->scales != nullptr;
      if (checked && !all_finite(line, depth_)) return source.part->tensor;
    }
    kernels::pack_panel(format, rows, depth_, to);
    return nullptr;
  }

  const MatrixPlan& plan_;
  const uint32_t depth_;
  const bool copies_fp8_;
  size_t line_floats_ = 0;
  std::vector<float> scratch_;
};

}  // namespace

bool MatrixPlan::copies_fp8() const {
  return to->format == WeightFormat::kFp8 && std::ranges::all_of(parts, [](const MatrixPart& part) {
           return part.scales != nullptr && !part.transposed;
         });
}

bool MatrixPlan::quantises() const {
  return kernels::is_integer(to->format) || (to->format == WeightFormat::kFp8 && !copies_fp8());
}

uint32_t MatrixPlan::num_panels() const {
  return interleaved ? 2 * panels_of(to->num_outputs) : panels_of(to->num_outputs);
}

uint32_t MatrixPlan::packed_output(size_t part, uint32_t output) const {
  if (interleaved) {
    const auto panel = output / kPanelOutputs * 2 + static_cast<uint32_t>(part);
    return panel * kPanelOutputs + output % kPanelOutputs;
  }
  for (size_t i = 0; i < part; ++i) output += parts[i].num_outputs;
  return output;
}

size_t MatrixPlan::size_bytes() const {
  return num_panels() * kernels::panel_bytes(to->format, to->depth);
}

WeightFormat format_for(WeightDtype dtype, const MatrixPlan& plan) {
  if (plan.role == MatrixRole::kRouter) return WeightFormat::kF32;
  if (dtype == WeightDtype::kAuto) return holding_format(plan);
  if (dtype == WeightDtype::kF32) return WeightFormat::kF32;
  if (dtype == WeightDtype::kBf16) return WeightFormat::kBf16;
  if (plan.role == MatrixRole::kLatent) return holding_format(plan);
  const bool vocabulary = plan.role == MatrixRole::kVocabulary;
  if (dtype == WeightDtype::kFp8) return vocabulary ? WeightFormat::kBf16 : WeightFormat::kFp8;
  const bool four_bits = dtype == WeightDtype::kInt4 && !vocabulary;
  return four_bits ? WeightFormat::kInt4 : WeightFormat::kInt8;
}

std::string_view name(WeightDtype dtype) {
  constexpr std::string_view kNames[] = {"auto", "f32", "bf16", "fp8", "int8", "int4"};
  return kNames[static_cast<size_t>(dtype)];
}

Result<WeightDtype> parse_weight_dtype(std::string_view text) {
  std::string known;
  for (const auto dtype : kAllWeightDtypes) {
    if (name(dtype) == text) return dtype;
    known.append(known.empty() ? "" : ", ").append(name(dtype));
  }
  return Status(StatusCode::kInvalidArgument,
                "weight_dtype must be one of " + known + ", not \"" + std::string(text) + "\"");
}

std::string_view dtype_name(const std::vector<MatrixPlan>& plans) {
  for (const auto dtype : kAllWeightDtypes) {
    if (dtype == WeightDtype::kAuto) continue;
    const bool all = std::ranges::all_of(
        plans, [&](const MatrixPlan& plan) { return plan.to->format == format_for(dtype, plan); });
    if (all) return name(dtype);
  }
  return "mixed";
}

size_t place(std::vector<MatrixPlan>& plans) {
  constexpr size_t kAlignment = 64;
  size_t size = 0;
  for (auto& plan : plans) {
    plan.offset = size;
    size = (size + plan.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  return size;
}

Status pack(const MatrixPlan& plan, std::byte* arena, ThreadPool& pool) {
  const size_t panel_bytes = kernels::panel_bytes(plan.to->format, plan.to->depth);
  std::atomic<const Tensor*> refused{nullptr};
  pool.parallel_for(plan.num_panels(), 16, [&](size_t begin, size_t end, uint32_t) {
    PanelPacker packer(plan);
    for (size_t panel = begin; panel < end; ++panel) {
      const Tensor* tensor =
          packer.pack(static_cast<uint32_t>(panel), arena + plan.offset + panel * panel_bytes);
      if (tensor != nullptr) refused.store(tensor, std::memory_order_relaxed);
    }
  });
  const Tensor* tensor = refused.load(std::memory_order_relaxed);
  if (tensor == nullptr) return {};
  return tensor_error(StatusCode::kInvalidArgument, *tensor,
                      "holds a NaN or an infinity; these weights are damaged: fetch them again");
}

}  // namespace crossdock
