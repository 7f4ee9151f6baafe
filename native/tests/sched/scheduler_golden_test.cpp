// Golden scripts: commands, a line of dashes, the output they must have, a blank line.
// `sched_scheduler_golden_test --rewrite` accepts what the scheduler does now; read the diff.
//
//   config blocks=8 budget=64 sequences=4 context=256 high=0.88 low=0.8 quarantine=0.25
//          chunked=0|1 step_max=250000
//   submit 1 role=local|source prompt=40 from=0 new=5 load=0|1
//   reserve 1 prompt=40 from=0 new=5
//   load_ready 1 blocks=2 · loaded 1 blocks=2
//   activate 1 · quarantine 1 · end_quarantine 1 · finish 1
//   plan · done · step times=3 (plan and done)
//   costs base=8000 decode=900 token=1500 (what steps take from here on; nothing is timed before)
//   show (every sequence)
//
// A prompt is `prompt` tokens that count up from `from`. A generated token is ten thousand times
// the id, and its position.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "crossdock/sched/scheduler.h"

namespace crossdock {
namespace {

bool rewrite = false;

struct Command {
  std::string name;
  SequenceId id = 0;
  std::map<std::string, std::string> arguments;

  std::string text(const std::string& key, const std::string& otherwise) const {
    const auto it = arguments.find(key);
    return it == arguments.end() ? otherwise : it->second;
  }
  uint32_t number(const std::string& key, uint32_t otherwise) const {
    return static_cast<uint32_t>(std::stoul(text(key, std::to_string(otherwise))));
  }
  double share(const std::string& key, double otherwise) const {
    return std::stod(text(key, std::to_string(otherwise)));
  }
};

Command parse(const std::string& line) {
  std::istringstream words(line);
  Command command;
  words >> command.name;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      command.id = std::stoull(word);
    } else {
      command.arguments[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  return command;
}

class Interpreter {
 public:
  std::string run(const std::string& line) {
    out_.str("");
    const Command command = parse(line);
    if (command.name == "config") {
      configure(command);
    } else if (!scheduler_) {
      out_ << "error: the script has no config\n";
    } else {
      apply(command);
      scheduler_->check();
    }
    return out_.str();
  }

 private:
  void configure(const Command& c) {
    scheduler_ = std::make_unique<Scheduler>(
        SchedulerConfig{.num_blocks = c.number("blocks", 0),
                        .token_budget = c.number("budget", 2048),
                        .chunked_prefill = c.number("chunked", 1) != 0,
                        .step_ticks_max = c.number("step_max", 0),
                        .num_sequences_max = c.number("sequences", 1024),
                        .context_tokens_max = c.number("context", 4096),
                        .high_watermark = c.share("high", 0.88),
                        .low_watermark = c.share("low", 0.80),
                        .quarantine_max = c.share("quarantine", 0.25)});
  }

  void apply(const Command& c) {
    Scheduler& s = *scheduler_;
    if (c.name == "submit") {
      const bool source = c.text("role", "local") == "source";
      report(c.id, s.submit({.id = c.id,
                             .role = source ? SequenceRole::kSource : SequenceRole::kLocal,
                             .prompt = prompt(c),
                             .max_new_tokens = c.number("new", 1),
                             .awaits_load = c.number("load", 0) != 0}));
    } else if (c.name == "reserve") {
      reserve(c);
    } else if (c.name == "load_ready") {
      s.load_ready(c.id, c.number("blocks", 0));
    } else if (c.name == "loaded") {
      s.loaded(c.id, c.number("blocks", 0), tick_);
    } else if (c.name == "activate") {
      s.activate(c.id, token(c.id), tick_);
    } else if (c.name == "quarantine") {
      s.quarantine(c.id);
    } else if (c.name == "end_quarantine") {
      s.end_quarantine(c.id);
      living_.erase(c.id);
    } else if (c.name == "finish") {
      s.finish(c.id);
      living_.erase(c.id);
    } else if (c.name == "plan") {
      plan();
    } else if (c.name == "done") {
      done();
    } else if (c.name == "step") {
      for (uint32_t i = 0; i < c.number("times", 1); ++i) {
        plan();
        if (!entries_.empty()) done();
      }
    } else if (c.name == "costs") {
      costs_ = c;
    } else if (c.name == "show") {
      show();
    } else {
      out_ << "error: unknown command " << c.name << "\n";
    }
  }

  static std::vector<int32_t> prompt(const Command& c) {
    std::vector<int32_t> tokens(c.number("prompt", 1));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(c.number("from", 0) + i);
    }
    return tokens;
  }

  int32_t token(SequenceId id) const {
    return static_cast<int32_t>(10'000 * id + scheduler_->tokens(id).size());
  }

  void report(SequenceId id, const Status& status) {
    if (status.ok()) {
      living_.insert(id);
    } else {
      out_ << id << ": " << status.to_string() << "\n";
    }
  }

  void reserve(const Command& c) {
    const auto grant = scheduler_->reserve(
        {.id = c.id, .prompt = prompt(c), .max_new_tokens = c.number("new", 1)}, tick_);
    report(c.id, grant.ok() ? Status() : grant.status());
    if (!grant.ok()) return;
    out_ << c.id << ": granted " << grant.value().blocks.size() << " blocks, "
         << grant.value().num_matched_blocks << " matched\n";
  }

  void plan() {
    const StepPlan& plan = scheduler_->plan(++tick_);
    entries_ = plan.entries;
    num_decodes_ = plan.num_decodes;
    out_ << tick_ << ":";
    if (plan.num_decodes > 0) out_ << " decode";
    for (uint32_t i = 0; i < plan.entries.size(); ++i) {
      const PlanEntry& entry = plan.entries[i];
      if (i == plan.num_decodes) out_ << (i > 0 ? " | chunk" : " chunk");
      out_ << " " << entry.id << "@" << entry.first_position;
      if (i >= plan.num_decodes) out_ << "+" << entry.num_tokens;
      if (i >= plan.num_decodes && entry.wants_logits) out_ << "!";
    }
    if (plan.empty()) out_ << " nothing";
    list("started", plan.started);
    list("preempted", plan.preempted);
    list("revoke", plan.revoke);
    if (!plan.loads.empty()) out_ << " | load";
    for (const LoadOrder& load : plan.loads) {
      out_ << " " << load.id << " blocks " << load.first_block << "+" << load.num_blocks;
    }
    const BlockPool& pool = scheduler_->pool();
    out_ << " | free " << pool.num_free() << " owned " << pool.num_owned() << " cached "
         << pool.num_cached();
    if (pool.num_quarantined() > 0) out_ << " quarantined " << pool.num_quarantined();
    if (scheduler_->idle()) out_ << " | idle";
    out_ << "\n";
  }

  void list(const char* name, const std::vector<SequenceId>& ids) {
    if (ids.empty()) return;
    out_ << " | " << name;
    for (const SequenceId id : ids) out_ << " " << id;
  }

  void done() {
    std::vector<TokenResult> results;
    uint64_t duration = costs_.number("base", 0);
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      const SequenceId id = entries_[i].id;
      duration += i < num_decodes_ ? costs_.number("decode", 0)
                                   : uint64_t{costs_.number("token", 0)} * entries_[i].num_tokens;
      if (!entries_[i].wants_logits) continue;
      results.push_back({i, scheduler_->contains(id) ? token(id) : 0, false});
    }
    scheduler_->step_done(results, tick_, duration);
  }

  void show() {
    static const char* const kStates[] = {"waiting", "loading",  "running",
                                          "held",    "reserved", "quarantined"};
    for (const SequenceId id : living_) {
      out_ << id << ": " << kStates[static_cast<size_t>(scheduler_->state(id))] << ", "
           << scheduler_->tokens(id).size() << " tokens, " << scheduler_->num_computed(id)
           << " computed, " << scheduler_->block_table(id).size() << " blocks, "
           << scheduler_->num_cached_tokens(id) << " from cache\n";
    }
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::set<SequenceId> living_;
  std::vector<PlanEntry> entries_;
  uint32_t num_decodes_ = 0;
  Command costs_;
  std::ostringstream out_;
  uint64_t tick_ = 0;
};

// The script with its outputs replaced by what happens now.
std::string replay(std::istream& script) {
  Interpreter interpreter;
  std::string result, output;
  bool in_expected = false;
  for (std::string line; std::getline(script, line);) {
    if (in_expected && !line.empty()) continue;  // replaced
    result += line + "\n";
    if (line == "----") {
      result += output;
      output.clear();
      in_expected = true;
    } else if (line.empty()) {
      in_expected = false;
    } else if (line[0] != '#') {
      output += interpreter.run(line);
    }
  }
  return result;
}

TEST(SchedulerGolden, EveryScriptHasItsOutput) {
  int num_scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GOLDEN_SCRIPTS)) {
    if (entry.path().extension() != ".txt") continue;
    ++num_scripts;
    std::ifstream file(entry.path());
    std::stringstream script;
    script << file.rdbuf();
    const std::string found = replay(script);
    if (rewrite) {
      std::ofstream(entry.path()) << found;
    } else {
      EXPECT_EQ(found, script.str()) << entry.path() << "; --rewrite accepts this";
    }
  }
  EXPECT_GE(num_scripts, 10);
}

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) crossdock::rewrite |= std::strcmp(argv[i], "--rewrite") == 0;
  return RUN_ALL_TESTS();
}
