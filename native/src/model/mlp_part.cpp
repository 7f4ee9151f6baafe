#include "mlp_part.h"

#include <algorithm>
#include <cstring>

namespace crossdock {

using kernels::Epilogue;

void DenseMlp::run(const MlpWeights& weights, const Rows& x, const Rows& residual) {
  const uint32_t size = weights.gate_up.num_outputs;
  grow(inner_, size_t{x.count} * size);
  const Rows inner{inner_.data(), size, x.count};
  tools_.products.run(
      {.matrix = &weights.gate_up, .x = x, .y = inner, .epilogue = Epilogue::kSwiGlu});
  tools_.products.run(
      {.matrix = &weights.down, .x = inner, .y = residual, .epilogue = Epilogue::kAdd});
}

MoeMlp::MoeMlp(const PartTools& tools) : tools_(tools), moe_(tools.model.moe) {
  route_scratch_.assign(tools.pool.num_threads(), std::vector<float>(route_scratch_floats(moe_)));
  first_.resize(moe_.num_experts + 1);
  products_.reserve(moe_.num_experts + 1);
}

void MoeMlp::run(const MoeWeights& weights, const Rows& x, const Rows& residual) {
  choose(weights, x);
  gather(x);
  multiply(weights, x);
  combine(residual);
}

void MoeMlp::choose(const MoeWeights& weights, const Rows& x) {
  grow(logits_, size_t{x.count} * moe_.num_experts);
  grow(choices_, size_t{x.count} * moe_.num_chosen);
  const Rows logits{logits_.data(), moe_.num_experts, x.count};
  tools_.products.run({.matrix = &weights.router, .x = x, .y = logits});
  const float* bias = weights.correction_bias.empty() ? nullptr : weights.correction_bias.data();
  tools_.pool.parallel_for(x.count, 8, [&](size_t begin, size_t end, uint32_t thread) {
    for (size_t row = begin; row < end; ++row) {
      route(moe_, logits[row], bias, route_scratch_[thread].data(),
            choices_.data() + row * moe_.num_chosen);
    }
  });
}

void MoeMlp::gather(const Rows& x) {
  const size_t num_gathered = size_t{x.count} * moe_.num_chosen;
  const uint32_t hidden = tools_.model.hidden_size;
  grow(places_, num_gathered);
  grow(gathered_, num_gathered * hidden);
  std::fill(first_.begin(), first_.end(), 0);
  for (size_t i = 0; i < num_gathered; ++i) ++first_[choices_[i].expert + 1];
  for (uint32_t expert = 0; expert < moe_.num_experts; ++expert) {
    first_[expert + 1] += first_[expert];
  }
  // Each place moves its expert's begin on to its end, which is where the next one's was.
  for (size_t i = 0; i < num_gathered; ++i) places_[i] = first_[choices_[i].expert]++;
  for (uint32_t expert = moe_.num_experts; expert > 0; --expert) {
    first_[expert] = first_[expert - 1];
  }
  first_[0] = 0;
  for_rows(tools_.pool, x.count, [&](uint32_t row) {
    for (uint32_t i = 0; i < moe_.num_chosen; ++i) {
      const size_t place = places_[size_t{row} * moe_.num_chosen + i];
      std::memcpy(gathered_.data() + place * hidden, x[row], hidden * sizeof(float));
    }
  });
}

void MoeMlp::multiply(const MoeWeights& weights, const Rows& x) {
  const uint32_t hidden = tools_.model.hidden_size, inner = moe_.intermediate_size;
  const uint32_t shared = moe_.shared_intermediate_size;
  const size_t num_gathered = size_t{x.count} * moe_.num_chosen;
  grow(inner_, num_gathered * inner);
  grow(out_, num_gathered * hidden);
  grow(shared_inner_, size_t{x.count} * shared);
  grow(shared_out_, shared > 0 ? size_t{x.count} * hidden : 0);
  const Rows shared_inner{shared_inner_.data(), shared, x.count};
  const auto rows_of = [&](std::vector<float>& memory, uint32_t width, uint32_t expert) {
    return Rows{memory.data() + size_t{first_[expert]} * width, width,
                first_[expert + 1] - first_[expert]};
  };
  products_.clear();
  if (shared > 0) {
    products_.push_back({.matrix = &weights.shared.gate_up,
                         .x = x,
                         .y = shared_inner,
                         .epilogue = Epilogue::kSwiGlu});
  }
  for (uint32_t expert = 0; expert < moe_.num_experts; ++expert) {
    if (first_[expert] == first_[expert + 1]) continue;
    products_.push_back({.matrix = &weights.experts[expert].gate_up,
                         .x = rows_of(gathered_, hidden, expert),
                         .y = rows_of(inner_, inner, expert),
                         .epilogue = Epilogue::kSwiGlu});
  }
  tools_.products.run(products_);
  products_.clear();
  if (shared > 0) {
    products_.push_back({.matrix = &weights.shared.down,
                         .x = shared_inner,
                         .y = {shared_out_.data(), hidden, x.count}});
  }
  for (uint32_t expert = 0; expert < moe_.num_experts; ++expert) {
    if (first_[expert] == first_[expert + 1]) continue;
    products_.push_back({.matrix = &weights.experts[expert].down,
                         .x = rows_of(inner_, inner, expert),
                         .y = rows_of(out_, hidden, expert)});
  }
  tools_.products.run(products_);
}

void MoeMlp::combine(const Rows& residual) {
  const uint32_t hidden = tools_.model.hidden_size;
  for_rows(tools_.pool, residual.count, [&](uint32_t row) {
    const Choice* choices = choices_.data() + size_t{row} * moe_.num_chosen;
    const uint32_t* places = places_.data() + size_t{row} * moe_.num_chosen;
    // The first expert's rows serve as the sum.
    float* sum = out_.data() + size_t{places[0]} * hidden;
    for (uint32_t k = 0; k < hidden; ++k) sum[k] *= choices[0].weight;
    for (uint32_t i = 1; i < moe_.num_chosen; ++i) {
      const float* out = out_.data() + size_t{places[i]} * hidden;
      for (uint32_t k = 0; k < hidden; ++k) sum[k] += out[k] * choices[i].weight;
    }
    if (moe_.shared_intermediate_size > 0) {
      const float* shared = shared_out_.data() + size_t{row} * hidden;
      for (uint32_t k = 0; k < hidden; ++k) sum[k] += shared[k];
    }
    float* to = residual[row];
    for (uint32_t k = 0; k < hidden; ++k) to[k] += sum[k];
  });
}

}  // namespace crossdock
