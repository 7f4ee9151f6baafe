// A decoder written to be read: the reference of the executor's tests.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "crossdock/kernels/math.h"
#include "tiny_decoder.h"

namespace crossdock::testing {
namespace {

using Vector = std::vector<double>;

double bf16(double value) {
  return kernels::widen_bf16(kernels::round_bf16(static_cast<float>(value)));
}

Vector matvec(const TinyTensor& matrix, const Vector& x) {
  Vector y(matrix.shape[0], 0.0);
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += double{matrix.values[n * x.size() + k]} * x[k];
  }
  return y;
}

Vector rms_norm(const TinyTensor& weight, const Vector& x, double epsilon) {
  double mean = 0.0;
  for (const double value : x) mean += value * value / static_cast<double>(x.size());
  Vector y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(x[i] / std::sqrt(mean + epsilon) * double{weight.values[i]});
  }
  return y;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// Indices by falling score, the lower index first among equals.
std::vector<size_t> ranking(const Vector& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

// One token at a time against all the keys and values so far.
class Naive {
 public:
  Naive(const TinyDecoder& model, bool kv_bf16) : model_(model), kv_bf16_(kv_bf16) {
    keys_.resize(number("num_hidden_layers"));
    values_.resize(keys_.size());
  }

  Vector step(int32_t token, size_t position) {
    const TinyTensor& embedding = model_.tensors.at("model.embed_tokens.weight");
    const size_t hidden = embedding.shape[1];
    const auto row = embedding.values.begin() + static_cast<ptrdiff_t>(token * hidden);
    Vector x(row, row + static_cast<ptrdiff_t>(hidden));
    const auto add = [&](const Vector& y) {
      for (size_t i = 0; i < hidden; ++i) x[i] += y[i];
    };
    const double epsilon = config()["rms_norm_eps"];
    for (layer_ = 0; layer_ < keys_.size(); ++layer_) {
      const Vector normed = rms_norm(weight("input_layernorm"), x, epsilon);
      add(model_.is_mla() ? mla(normed, position) : gqa(normed, position));
      const Vector mlp_normed = rms_norm(weight("post_attention_layernorm"), x, epsilon);
      add(model_.is_moe(layer_) ? moe(mlp_normed) : mlp("mlp.", mlp_normed));
    }
    const bool tied = config()["tie_word_embeddings"];
    return matvec(tied ? embedding : model_.tensors.at("lm_head.weight"),
                  rms_norm(model_.tensors.at("model.norm.weight"), x, epsilon));
  }

 private:
  const nlohmann::json& config() const { return model_.config; }
  size_t number(const char* key) const { return config()[key]; }
  const TinyTensor& tensor(const std::string& name) const {
    return model_.tensors.at("model.layers." + std::to_string(layer_) + "." + name);
  }
  const TinyTensor& weight(const std::string& name) const { return tensor(name + ".weight"); }
  bool has_yarn() const { return config().contains("rope_scaling"); }

  static double yarn_magnitude(double factor, double mscale) {
    return 0.1 * mscale * std::log(factor) + 1.0;
  }

  double frequency(size_t i, size_t dim) const {
    const double theta = config()["rope_theta"];
    const double plain = std::pow(theta, -2.0 * double(i) / double(dim));
    if (!has_yarn()) return plain;
    const auto& yarn = config()["rope_scaling"];
    const auto dimension = [&](double rotations) {
      const double turns = yarn["original_max_position_embeddings"].get<double>() /
                           (rotations * 2 * std::numbers::pi_v<double>);
      return double(dim) * std::log(turns) / (2 * std::log(theta));
    };
    const double low = std::max(std::floor(dimension(32.0)), 0.0);
    const double high = std::min(std::ceil(dimension(1.0)), double(dim) - 1);
    const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    return plain * (1 - ramp) + plain / yarn["factor"].get<double>() * ramp;
  }

  void rotate(double* head, size_t dim, size_t position) const {
    double magnitude = 1.0;
    if (has_yarn()) {
      const auto& yarn = config()["rope_scaling"];
      magnitude = yarn_magnitude(yarn["factor"], yarn["mscale"]) /
                  yarn_magnitude(yarn["factor"], yarn["mscale_all_dim"]);
    }
    for (size_t i = 0; i < dim / 2; ++i) {
      const double angle = double(position) * frequency(i, dim);
      double& first = head[model_.is_mla() ? 2 * i : i];
      double& second = head[model_.is_mla() ? 2 * i + 1 : i + dim / 2];
      const double a = first, b = second;
      first = magnitude * (a * std::cos(angle) - b * std::sin(angle));
      second = magnitude * (b * std::cos(angle) + a * std::sin(angle));
    }
  }

  void round(Vector& cached) const {
    if (!kv_bf16_) return;
    for (double& value : cached) value = bf16(value);
  }

  // Values weighted by the softmax of the scores, from `begin` on in each position's values.
  Vector weigh(const Vector& scores, size_t begin, size_t size) const {
    Vector out(size, 0.0);
    double sum = 0.0;
    for (size_t t = 0; t < scores.size(); ++t) {
      const double p = std::exp(scores[t]);
      sum += p;
      for (size_t d = 0; d < size; ++d) out[d] += p * values_[layer_][t][begin + d];
    }
    for (double& value : out) value /= sum;
    return out;
  }

  Vector project(const std::string& name, const Vector& x) const {
    Vector y = matvec(weight(name), x);
    if (model_.architecture() != "Qwen2ForCausalLM") return y;
    for (size_t i = 0; i < y.size(); ++i) y[i] += double{tensor(name + ".bias").values[i]};
    return y;
  }

  // Norm and rotation of each head.
  void finish_heads(Vector& heads, const std::string& norm, size_t position) const {
    const size_t dim = number("head_dim");
    for (size_t at = 0; at < heads.size(); at += dim) {
      const auto begin = heads.begin() + static_cast<ptrdiff_t>(at);
      if (model_.architecture().starts_with("Qwen3")) {
        const Vector head(begin, begin + static_cast<ptrdiff_t>(dim));
        std::ranges::copy(rms_norm(weight(norm), head, config()["rms_norm_eps"]), begin);
      }
      rotate(&heads[at], dim, position);
    }
  }

  Vector gqa(const Vector& x, size_t position) {
    const size_t num_heads = number("num_attention_heads"), dim = number("head_dim");
    const size_t group = num_heads / number("num_key_value_heads");
    Vector q = project("self_attn.q_proj", x), k = project("self_attn.k_proj", x);
    Vector v = project("self_attn.v_proj", x);
    finish_heads(q, "self_attn.q_norm", position);
    finish_heads(k, "self_attn.k_norm", position);
    round(k);
    round(v);
    keys_[layer_].push_back(k);
    values_[layer_].push_back(v);
    Vector out;
    for (size_t head = 0; head < num_heads; ++head) {
      const size_t kv = head / group * dim;
      Vector scores;
      for (const auto& key : keys_[layer_]) {
        const double score = std::inner_product(&key[kv], &key[kv] + dim, &q[head * dim], 0.0);
        scores.push_back(score / std::sqrt(double(dim)));
      }
      const Vector weighted = weigh(scores, kv, dim);
      out.insert(out.end(), weighted.begin(), weighted.end());
    }
    return matvec(weight("self_attn.o_proj"), out);
  }

  Vector mla_queries(const Vector& x) const {
    if (config()["q_lora_rank"].is_null()) return matvec(weight("self_attn.q_proj"), x);
    const Vector low = matvec(weight("self_attn.q_a_proj"), x);
    return matvec(weight("self_attn.q_b_proj"),
                  rms_norm(weight("self_attn.q_a_layernorm"), low, 1e-6));
  }

  Vector mla(const Vector& x, size_t position) {
    const size_t num_heads = number("num_attention_heads"), rank = number("kv_lora_rank");
    const size_t nope = number("qk_nope_head_dim"), rope = number("qk_rope_head_dim");
    const size_t value = number("v_head_dim"), key = nope + rope;
    Vector q = mla_queries(x);
    for (size_t head = 0; head < num_heads; ++head) rotate(&q[head * key + nope], rope, position);
    const Vector kv = matvec(weight("self_attn.kv_a_proj_with_mqa"), x);
    const auto split = kv.begin() + static_cast<ptrdiff_t>(rank);
    Vector latent = rms_norm(weight("self_attn.kv_a_layernorm"), Vector(kv.begin(), split), 1e-6);
    Vector shared(split, kv.end());
    rotate(shared.data(), rope, position);
    round(latent);
    round(shared);
    const Vector expanded = matvec(weight("self_attn.kv_b_proj"), latent);
    Vector keys, values;
    for (size_t head = 0; head < num_heads; ++head) {
      const double* from = &expanded[head * (nope + value)];
      keys.insert(keys.end(), from, from + nope);
      keys.insert(keys.end(), shared.begin(), shared.end());
      values.insert(values.end(), from + nope, from + nope + value);
    }
    keys_[layer_].push_back(keys);
    values_[layer_].push_back(values);
    double scale = 1.0 / std::sqrt(double(key));
    if (has_yarn()) {
      const auto& yarn = config()["rope_scaling"];
      scale *= std::pow(yarn_magnitude(yarn["factor"], yarn["mscale_all_dim"]), 2.0);
    }
    Vector out;
    for (size_t head = 0; head < num_heads; ++head) {
      Vector scores;
      for (const auto& cached : keys_[layer_]) {
        const double* k = &cached[head * key];
        scores.push_back(scale * std::inner_product(k, k + key, &q[head * key], 0.0));
      }
      const Vector weighted = weigh(scores, head * value, value);
      out.insert(out.end(), weighted.begin(), weighted.end());
    }
    return matvec(weight("self_attn.o_proj"), out);
  }

  Vector mlp(const std::string& prefix, const Vector& x) const {
    Vector gate = matvec(weight(prefix + "gate_proj"), x);
    const Vector up = matvec(weight(prefix + "up_proj"), x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = silu(gate[i]) * up[i];
    return matvec(weight(prefix + "down_proj"), gate);
  }

  // Scores that choose: outside the best groups there is nothing to choose.
  void exclude_groups(Vector& ranked) const {
    const size_t num_groups = number("n_group"), size = ranked.size() / num_groups;
    Vector groups;
    for (size_t group = 0; group < num_groups; ++group) {
      const auto begin = ranked.begin() + static_cast<ptrdiff_t>(group * size);
      Vector members(begin, begin + static_cast<ptrdiff_t>(size));
      std::ranges::sort(members, std::greater<>());
      const bool top_two = model_.architecture() == "DeepseekV3ForCausalLM";
      groups.push_back(top_two ? members[0] + members[1] : members[0]);
    }
    const auto order = ranking(groups);
    for (size_t i = number("topk_group"); i < num_groups; ++i) {
      for (size_t n = 0; n < size; ++n) ranked[order[i] * size + n] = -INFINITY;
    }
  }

  Vector moe(const Vector& x) const {
    Vector scores = matvec(weight("mlp.gate"), x);
    const bool sigmoid = model_.architecture() == "DeepseekV3ForCausalLM";
    double all = 0.0;
    for (double& score : scores) {
      score = sigmoid ? 1.0 / (1.0 + std::exp(-score)) : std::exp(score);
      all += score;
    }
    if (!sigmoid) {
      for (double& score : scores) score /= all;
    }
    Vector ranked = scores;
    if (sigmoid) {
      const auto& bias = tensor("mlp.gate.e_score_correction_bias").values;
      for (size_t i = 0; i < ranked.size(); ++i) ranked[i] += double{bias[i]};
    }
    if (model_.is_mla()) exclude_groups(ranked);
    auto chosen = ranking(ranked);
    chosen.resize(number("num_experts_per_tok"));
    double sum = 0.0;
    for (const size_t expert : chosen) sum += scores[expert];
    const double divisor = config().value("norm_topk_prob", false) ? sum : 1.0;
    const double scale = config().value("routed_scaling_factor", 1.0);
    Vector out(x.size(), 0.0);
    const auto add = [&](const Vector& y, double by) {
      for (size_t i = 0; i < out.size(); ++i) out[i] += y[i] * by;
    };
    for (const size_t expert : chosen) {
      add(mlp("mlp.experts." + std::to_string(expert) + ".", x), scores[expert] / divisor * scale);
    }
    if (config().value("n_shared_experts", 0) > 0) add(mlp("mlp.shared_experts.", x), 1.0);
    return out;
  }

  const TinyDecoder& model_;
  const bool kv_bf16_;
  size_t layer_ = 0;
  std::vector<std::vector<Vector>> keys_, values_;  // [layer][position]
};

}  // namespace

std::vector<std::vector<double>> naive_logits(const TinyDecoder& model,
                                              const std::vector<int32_t>& tokens, bool kv_bf16) {
  Naive naive(model, kv_bf16);
  std::vector<std::vector<double>> logits;
  for (size_t i = 0; i < tokens.size(); ++i) logits.push_back(naive.step(tokens[i], i));
  return logits;
}

}  // namespace crossdock::testing
