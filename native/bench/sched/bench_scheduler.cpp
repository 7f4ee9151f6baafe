// One step of the scheduler: plan and step_done, blocks and tree included, no model.
//
// decode: N running sequences of about 512 tokens, one token each.
// mixed: one new prompt of 512 tokens a step; each sequence ends after N tokens, so N stay running.
//        `finish` of the ended one is part of the step.
// mixed, evicting: the same over a pool that is full, so that every step evicts and reuses.
// Prints one JSON line a case; values are medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "crossdock/sched/scheduler.h"

namespace crossdock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPromptTokens = 512;
constexpr uint32_t kLargePoolBlocks = 400'000;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double percentile(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<ptrdiff_t>(share * (values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

class SchedulerBench {
 public:
  SchedulerBench(uint32_t num_running, uint32_t num_blocks)
      : num_running_(num_running),
        scheduler_({.num_blocks = num_blocks,
                    .step_ticks_max = 1'000'000'000,  // never reached: the fit is asked, and agrees
                    .num_sequences_max = 1100,
                    .context_tokens_max = 8192}),
        random_(1),
        root_(root_hash("salt", Fingerprint{}, "", "bench")) {}

  void decode() {
    max_new_tokens_ = 0;  // none ends
    for (uint32_t i = 0; i < num_running_; ++i) {
      // Their lengths differ, so that in each step a 32nd of them crosses into a new block.
      submit(kPromptTokens - 16 + static_cast<uint32_t>(random_() % 32), 4000);
    }
    while (scheduler_.num_waiting() > 0 || last_num_entries_ != last_num_decodes_) step();
    run("decode", [] {});
  }

  void mixed(const char* name) {
    for (uint32_t i = 0; i < 2 * num_running_ + 100; ++i) {
      submit(kPromptTokens, num_running_);
      step();
    }
    std::vector<double> submits;
    run(name, [&] {
      const Clock::time_point start = Clock::now();
      submit(kPromptTokens, num_running_);
      submits.push_back(microseconds_since(start));
    });
    print("submit 512 tokens beside", percentile(submits, 0.5), percentile(submits, 0.99), 0);
  }

 private:
  template <typename Before>
  void run(const char* name, Before before) {
    constexpr uint32_t kSteps = 1000;
    std::vector<double> steps;
    for (uint32_t i = 0; i < kSteps; ++i) {
      before();
      steps.push_back(step());
      if (last_num_entries_ != num_running_) {
        std::fprintf(stderr, "%s: %u sequences in the step, not %u\n", name, last_num_entries_,
                     num_running_);
        std::abort();
      }
    }
    const double goal = num_running_ == 64    ? 10
                        : num_running_ == 256 ? 30
                        : num_running_ == 512 ? 50
                                              : 100;
    print(name, percentile(steps, 0.5), percentile(steps, 0.99), goal);
  }

  void submit(uint32_t num_tokens, uint32_t max_new_tokens) {
    Submission submission{.id = ++last_id_, .max_new_tokens = max_new_tokens, .root = root_};
    submission.prompt.resize(num_tokens);
    for (int32_t& token : submission.prompt) token = static_cast<int32_t>(random_() % 30000);
    if (!scheduler_.submit(std::move(submission)).ok()) std::abort();
  }

  // Plans and completes one step; returns what that took, without the making of the results.
  double step() {
    Clock::time_point start = Clock::now();
    const StepPlan& plan = scheduler_.plan(++tick_);
    double spent = microseconds_since(start);
    last_num_entries_ = static_cast<uint32_t>(plan.entries.size());
    last_num_decodes_ = plan.num_decodes;
    results_.clear();
    ended_.clear();
    for (uint32_t i = 0; i < plan.entries.size(); ++i) {
      const PlanEntry& entry = plan.entries[i];
      if (!entry.wants_logits) continue;
      if (entry.slot >= num_generated_.size()) num_generated_.resize(entry.slot + 1);
      uint32_t& generated = num_generated_[entry.slot];
      const bool finished = ++generated == max_new_tokens_;
      results_.push_back({i, static_cast<int32_t>(random_() % 30000), finished});
      if (finished) {
        ended_.push_back(entry.id);
        generated = 0;
      }
    }
    start = Clock::now();
    scheduler_.step_done(results_, tick_, 1'000 + 100 * plan.entries.size());
    for (const SequenceId id : ended_) scheduler_.finish(id);
    return spent + microseconds_since(start);
  }

  void print(const char* name, double value, double p99, double goal) const {
    std::printf(
        "{\"bench\": \"scheduler\", \"case\": \"%s, %u running\", \"value\": %.2f, "
        "\"p99\": %.2f, \"unit\": \"us\"",
        name, num_running_, value, p99);
    // A time meets its goal where the ratio is at least 1.
    if (goal > 0) {
      std::printf(", \"limit\": %g, \"limit_is\": \"goal\", \"ratio\": %.2f", goal, goal / value);
    }
    std::printf("}\n");
    std::fflush(stdout);
  }

  uint32_t num_running_;
  uint32_t max_new_tokens_ = num_running_;
  Scheduler scheduler_;
  std::mt19937_64 random_;
  BlockHash root_;
  uint64_t tick_ = 0;
  SequenceId last_id_ = 0;
  uint32_t last_num_entries_ = 0;
  uint32_t last_num_decodes_ = 0;
  std::vector<TokenResult> results_;
  std::vector<SequenceId> ended_;
  std::vector<uint32_t> num_generated_;  // by slot
};

}  // namespace
}  // namespace crossdock

int main() {
  using crossdock::SchedulerBench;
  for (const uint32_t n : {64u, 256u, 512u, 1024u}) {
    SchedulerBench(n, crossdock::kLargePoolBlocks).decode();
    SchedulerBench(n, crossdock::kLargePoolBlocks).mixed("mixed");
    const uint32_t num_used = n * (crossdock::kPromptTokens + n / 2 + 64) / 32;
    SchedulerBench(n, num_used * 5 / 4).mixed("mixed, evicting");
  }
  return 0;
}
