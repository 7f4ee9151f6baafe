// Walks the tensors of a decoder in the order of use and plans every matrix.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "crossdock/model/model_config.h"
#include "matrix_plan.h"

namespace crossdock {

class WeightPlanner {
 public:
  WeightPlanner(const ModelConfig& config, TensorReader& reader, DecoderWeights& weights)
      : config_(config), reader_(reader), weights_(weights) {}

  // Shapes, formats and places in an arena; afterwards only the panels' addresses are missing. The
  // vectors are read at once.
  Status plan(const WeightOptions& options);
  const std::vector<MatrixPlan>& plans() const { return plans_; }
  size_t arena_bytes() const { return arena_bytes_; }
  void bind(const std::byte* arena);

 private:
  struct Wanted {
    std::string name;
    uint64_t outputs = 0;
  };

  Status plan_decoder();
  Status add(MatrixRole role, PackedMatrix& to, uint64_t depth, const std::vector<Wanted>& wanted);
  Status plan_layer(uint32_t layer);
  Status plan_gqa(const std::string& prefix, GqaWeights& gqa);
  Status plan_mla(const std::string& prefix, MlaWeights& mla);
  Status plan_latent(const std::string& prefix, MlaWeights& mla);
  Status plan_mlp(const std::string& prefix, uint64_t inner, MlpWeights& mlp);
  Status plan_moe(const std::string& prefix, MoeWeights& moe);

  const ModelConfig& config_;
  TensorReader& reader_;
  DecoderWeights& weights_;
  std::vector<MatrixPlan> plans_;
  size_t arena_bytes_ = 0;
  bool expands_latents_ = false;
};

}  // namespace crossdock
