#include "crossdock/sched/step_time_fit.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace crossdock {
namespace {

// Shares of what they apply to. Measured on two cores with a busy neighbour, steps of equal load
// differ by about a tenth; the drifts make the fit follow a level within four or five steps.
constexpr double kMachineNoise = 0.1;
constexpr double kCommonDrift = 0.05;
constexpr double kOwnDrift = 0.02;
// An observation further off than this many standard deviations is a surprise.
constexpr double kSurprise = 3.0;
// How unequally a change of speed may touch the coefficients.
constexpr double kChangeSpread = 0.3;
// A context of this many positions may cost as much as a token's matrices, before anything is
// known.
constexpr double kContextPrior = 1000.0;

}  // namespace

StepLoad StepLoad::with_chunk(uint32_t first_position, uint32_t num_tokens) const {
  const uint64_t n = num_tokens;
  StepLoad load = *this;
  load.num_chunk_tokens += num_tokens;
  load.num_attended += n * first_position + n * (n + 1) / 2;
  return load;
}

StepTimeFit::Terms StepTimeFit::terms_of(const StepLoad& load) {
  return {1.0, static_cast<double>(load.num_decodes), static_cast<double>(load.num_chunk_tokens),
          static_cast<double>(load.num_attended)};
}

double StepTimeFit::dot(const Terms& a, const Terms& b) {
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// The covariance times the terms.
StepTimeFit::Terms StepTimeFit::spread_of(const Terms& terms) const {
  Terms spread;
  for (size_t i = 0; i < kTerms; ++i) spread[i] = dot(covariance_[i], terms);
  return spread;
}

double StepTimeFit::variance(const Terms& terms) const {
  const double noise = std::max(1.0, kMachineNoise * dot(coefficients_, terms));
  return dot(terms, spread_of(terms)) + noise * noise;
}

double StepTimeFit::predict(const StepLoad& load) const {
  return dot(coefficients_, terms_of(load));
}

bool StepTimeFit::keeps(const StepLoad& load, uint64_t bound_ticks) const {
  if (!has_observed_) return false;
  const Terms terms = terms_of(load);
  const double margin = std::sqrt(std::max(0.0, dot(terms, spread_of(terms))));
  return dot(coefficients_, terms) + margin <= static_cast<double>(bound_ticks);
}

uint32_t StepTimeFit::largest_chunk(const StepLoad& planned, uint32_t first_position,
                                    uint32_t num_tokens_max, uint64_t bound_ticks) const {
  uint32_t kept = 0;
  for (uint32_t beyond = num_tokens_max + 1; beyond - kept > 1;) {
    const uint32_t middle = kept + (beyond - kept) / 2;
    const bool fits = keeps(planned.with_chunk(first_position, middle), bound_ticks);
    (fits ? kept : beyond) = middle;
  }
  return kept;
}

void StepTimeFit::observe(const StepLoad& load, uint64_t duration_ticks) {
  assert(duration_ticks > 0);
  const Observation observation{terms_of(load), static_cast<double>(duration_ticks)};
  if (!has_observed_) begin(load, observation.duration);
  drift(observation.terms);
  if (is_change_of_speed(observation)) change_speed();
  learn(observation);
}

// The first step says how long anything takes here: it may be all base or all tokens, and a token
// of a prompt may cost anything up to what a decode does.
void StepTimeFit::begin(const StepLoad& load, double duration) {
  has_observed_ = true;
  const double share = 0.5 * duration;
  const double token = share / std::max(1u, load.num_decodes + load.num_chunk_tokens);
  coefficients_ = {share, token, token, 0.0};
  const Terms deviations = {share, token, token, token / kContextPrior};
  for (size_t i = 0; i < kTerms; ++i) covariance_[i][i] = deviations[i] * deviations[i];
}

// What may have changed since the last step.
void StepTimeFit::drift(const Terms& terms) {
  const double total = dot(coefficients_, terms);
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      covariance_[i][j] += kCommonDrift * kCommonDrift * coefficients_[i] * coefficients_[j];
    }
    if (terms[i] == 0) continue;
    // A coefficient at zero may grow again.
    const double own = kOwnDrift * std::max(coefficients_[i], 0.1 * total / terms[i]);
    covariance_[i][i] += own * own;
  }
}

bool StepTimeFit::is_change_of_speed(const Observation& observation) {
  const double error = observation.duration - dot(coefficients_, observation.terms);
  if (std::abs(error) <= kSurprise * std::sqrt(variance(observation.terms))) {
    num_surprises_ = 0;
    return false;
  }
  if ((error > 0) != is_slower_) num_surprises_ = 0;
  is_slower_ = error > 0;
  surprises_[num_surprises_++] = observation;
  return num_surprises_ == kSurprisesMax;
}

void StepTimeFit::change_speed() {
  Terms ratios{};
  static_assert(kSurprisesMax <= kTerms && kSurprisesMax % 2 == 1);
  for (size_t i = 0; i < kSurprisesMax; ++i) {
    const double predicted = dot(coefficients_, surprises_[i].terms);
    ratios[i] = surprises_[i].duration / std::max(1.0, predicted);
  }
  std::sort(ratios.begin(), ratios.begin() + kSurprisesMax);
  const double ratio = ratios[kSurprisesMax / 2];
  num_surprises_ = 0;
  for (size_t i = 0; i < kTerms; ++i) {
    coefficients_[i] *= ratio;
    for (double& covariance : covariance_[i]) covariance *= ratio * ratio;
    const double deviation = kChangeSpread * coefficients_[i];
    covariance_[i][i] += deviation * deviation;
  }
}

void StepTimeFit::learn(const Observation& observation) {
  const Terms spread = spread_of(observation.terms);
  const double variance_of_it = variance(observation.terms);
  const double far = kSurprise * std::sqrt(variance_of_it);
  double error = observation.duration - dot(coefficients_, observation.terms);
  // The further off a surprise is, the less it counts; none counts for nothing, since a mix that
  // comes now and then never makes a change of speed.
  if (std::abs(error) > far) error = std::copysign(far * (far / error), error);
  for (size_t i = 0; i < kTerms; ++i) {
    coefficients_[i] += spread[i] * error / variance_of_it;
    for (size_t j = 0; j < kTerms; ++j) {
      covariance_[i][j] -= spread[i] * spread[j] / variance_of_it;
    }
  }
  keep_non_negative();
}

// The most likely coefficients of which this one is zero: the others take over its part.
void StepTimeFit::keep_non_negative() {
  for (size_t i = 0; i < kTerms; ++i) {
    if (coefficients_[i] >= 0 || covariance_[i][i] <= 0) continue;
    const double excess = coefficients_[i] / covariance_[i][i];
    for (size_t j = 0; j < kTerms; ++j) coefficients_[j] -= covariance_[i][j] * excess;
  }
  for (double& coefficient : coefficients_) coefficient = std::max(0.0, coefficient);
}

}  // namespace crossdock
