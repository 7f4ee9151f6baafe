// The MLP of a decoder layer, from normed rows onto the residual: dense, or a mixture of experts.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_part.h"
#include "routing.h"

namespace crossdock {

class DenseMlp {
 public:
  explicit DenseMlp(const PartTools& tools) : tools_(tools) {}
  void run(const MlpWeights& weights, const Rows& x, const Rows& residual);

 private:
  const PartTools tools_;
  std::vector<float> inner_;
};

// Rows are gathered by expert, so each expert's weights are passed over once a step, whatever the
// batch. A row sums its experts by ascending id, then the shared ones, then adds to the residual.
class MoeMlp {
 public:
  explicit MoeMlp(const PartTools& tools);
  void run(const MoeWeights& weights, const Rows& x, const Rows& residual);

 private:
  void choose(const MoeWeights& weights, const Rows& x);
  void gather(const Rows& x);
  void multiply(const MoeWeights& weights, const Rows& x);
  void combine(const Rows& residual);

  const PartTools tools_;
  const MoeConfig& moe_;
  std::vector<float> logits_;                      // [row][expert]
  std::vector<std::vector<float>> route_scratch_;  // a thread
  std::vector<Choice> choices_;                    // [row][chosen], ascending
  std::vector<uint32_t> places_;                   // [row][chosen]: the gathered row
  std::vector<uint32_t> first_;                    // gathered row of each expert; one past the last
  std::vector<MatrixProduct> products_;
  std::vector<float> gathered_;      // [gathered row][hidden]
  std::vector<float> inner_;         // [gathered row][expert's intermediate]
  std::vector<float> shared_inner_;  // [row][shared intermediate]
  std::vector<float> out_;           // [gathered row][hidden]
  std::vector<float> shared_out_;    // [row][hidden]
};

}  // namespace crossdock
