// How long a step will take, learnt from the steps before it:
//
//   t = base + alpha * num_decodes + beta * num_chunk_tokens + gamma * num_attended
//
// The context term is our addition (docs/decisions/0005): a prompt token attends to everything
// before it, which at a few thousand positions costs as much as its matrices. A decode's context is
// in alpha, since it grows by one position a step and the fit follows.
//
// Theory of operation. Recursive least squares over relative errors, whose forgetting is a little
// noise that every observation adds: most of it common to all coefficients, since a machine gets
// slower or faster as a whole, so what is not seen for a while follows what is. A single step that
// is far off is a hiccup and counts little; `kSurprisesMax` in a row on one side are a change of
// speed, and scale all coefficients at once. Coefficients are never negative. Predictions for a
// choice lie one standard deviation of the coefficients above their mean, so mixes that were never
// seen are approached in growing strides.
//
// No clock: durations are arguments. The arithmetic is f64 in one order, so equal observations give
// equal answers. Not thread-safe; an object of the scheduler's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace crossdock {

// What a step computes, as far as its time depends on it.
struct StepLoad {
  uint32_t num_decodes = 0;
  uint32_t num_chunk_tokens = 0;
  uint64_t num_attended = 0;  // positions that the chunks' tokens attend to, summed over the tokens

  // The same with a chunk of positions [first_position, +num_tokens).
  StepLoad with_chunk(uint32_t first_position, uint32_t num_tokens) const;
};

class StepTimeFit {
 public:
  // This many steps in a row that are far off on one side are a change of speed. After a change
  // so many steps miss the bound, and the next keeps it again.
  static constexpr uint32_t kSurprisesMax = 3;

  void observe(const StepLoad& load, uint64_t duration_ticks);
  bool has_observed() const { return has_observed_; }

  // The expected duration in ticks; 0 before the first observation.
  double predict(const StepLoad& load) const;
  // Whether the step is safely within the bound; before the first observation nothing is.
  bool keeps(const StepLoad& load, uint64_t bound_ticks) const;
  // The most tokens, up to num_tokens_max, that a chunk from first_position may add to what is
  // planned so that the step keeps the bound; 0 where even one is too many.
  uint32_t largest_chunk(const StepLoad& planned, uint32_t first_position, uint32_t num_tokens_max,
                         uint64_t bound_ticks) const;

 private:
  static constexpr size_t kTerms = 4;
  using Terms = std::array<double, kTerms>;
  struct Observation {
    Terms terms{};
    double duration = 0;
  };

  static Terms terms_of(const StepLoad& load);
  static double dot(const Terms& a, const Terms& b);
  Terms spread_of(const Terms& terms) const;
  // The variance of an observation of these terms: of the coefficients, and of the machine.
  double variance(const Terms& terms) const;
  void begin(const StepLoad& load, double duration);
  void drift(const Terms& terms);
  void learn(const Observation& observation);
  void keep_non_negative();
  bool is_change_of_speed(const Observation& observation);
  void change_speed();

  bool has_observed_ = false;
  Terms coefficients_{};                    // base, alpha, beta, gamma, in ticks
  std::array<Terms, kTerms> covariance_{};  // of the coefficients
  std::array<Observation, kSurprisesMax> surprises_{};
  uint32_t num_surprises_ = 0;  // in a row, all on one side
  bool is_slower_ = false;      // the side
};

}  // namespace crossdock
