// Where the panels of each packed matrix come from and where they go: made from a checkpoint's
// headers alone, so that everything that can be wrong with names, shapes and dtypes is said before
// anything big is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "crossdock/model/executor.h"
#include "crossdock/sys/thread_pool.h"
#include "decoder_weights.h"
#include "tensor_reader.h"

namespace crossdock {

// What a matrix is for decides which formats suit it.
enum class MatrixRole : uint8_t {
  kLayer,
  kVocabulary,  // embedding and head: bf16 beside fp8, as published FP8 checkpoints have it; int8
                // beside int4
  kLatent,      // a head's share of kv_b_proj: bf16 or f32, whichever holds the checkpoint
  kRouter,      // f32: which experts are chosen hangs on it
};

struct MatrixPlan {
  PackedMatrix* to = nullptr;
  MatrixRole role = MatrixRole::kLayer;
  std::vector<MatrixPart> parts;  // one after the other
  bool interleaved = false;       // two parts, their panels in turn: gate and up
  size_t offset = 0;              // of the first panel in the arena

  // Codes and scales of an FP8 checkpoint go into the panels as they are.
  bool copies_fp8() const;
  // The format is chosen weight by weight, which takes longer than reading the result again.
  bool quantises() const;
  uint32_t num_panels() const;
  // Which output of the packed matrix an output of a part is.
  uint32_t packed_output(size_t part, uint32_t output) const;
  size_t size_bytes() const;
};

// The format that `dtype` means for the matrix.
kernels::WeightFormat format_for(WeightDtype dtype, const MatrixPlan& plan);
// "f32", "bf16", "fp8", "int8" or "int4" when every matrix has the format that this means; else
// "mixed", which only "auto" gives.
std::string_view dtype_name(const std::vector<MatrixPlan>& plans);

// Gives each matrix its place in an arena, on a cache line; returns the arena's size.
size_t place(std::vector<MatrixPlan>& plans);
// Packs one matrix. INVALID_ARGUMENT names a tensor that holds a NaN code or, where a format cannot
// keep it, a NaN or an infinity.
Status pack(const MatrixPlan& plan, std::byte* arena, ThreadPool& pool);

}  // namespace crossdock
