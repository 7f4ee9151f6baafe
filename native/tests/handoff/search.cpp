// Breadth first, so that a violation is found by the fewest moves. Without faults the world takes
// its first open move, which is itself a move of the search: so only a world at rest need be
// drained, as long as every other one comes to rest.
#include "search.h"

#include <xxhash.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace crossdock::testing {
namespace {

struct StateId {
  uint64_t low = 0, high = 0;
  friend bool operator==(const StateId&, const StateId&) = default;
};
struct StateIdHash {
  size_t operator()(const StateId& id) const { return id.low; }
};

struct State {
  StateId calm;  // where it goes without faults
  StateId parent;
  Move move;  // from the parent
};

StateId id_of(const World& world) {
  const std::string text = world.fingerprint();
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

class Search {
 public:
  SearchResult run(const WorldConfig& config) {
    std::vector<std::pair<StateId, World>> level;
    level.emplace_back(StateId{}, World(config));
    level.front().first = id_of(level.front().second);
    states_.emplace(level.front().first, State{level.front().first, {}, {}});
    while (!level.empty() && !over() && result_.depth < config.depth_max) {
      for (const auto& [id, world] : level) {
        expand(id, world);
        if (over()) break;
      }
      level.swap(next_);
      next_.clear();
      if (!level.empty()) ++result_.depth;
    }
    result_.num_states = states_.size();
    result_.exhausted = level.empty();
    // What was not expanded is drained move by move.
    for (auto& [id, world] : level) {
      if (!result_.violation.has_value()) drain(id, world);
    }
    if (!result_.violation.has_value() && result_.exhausted) check_rest();
    return std::move(result_);
  }

 private:
  bool over() const { return result_.violation.has_value() || states_.size() >= kStatesMax; }

  void expand(const StateId& id, const World& world) {
    const auto calm_moves = world.moves(false);
    if (calm_moves.empty()) drain(id, world);
    for (const Move& move : world.moves(true)) {
      if (result_.violation.has_value()) return;
      World next = world;
      next.apply(move);
      ++result_.num_transitions;
      if (next.violation().has_value()) {
        result_.violation = next.violation();
        result_.moves = path_to(id) + to_string(move);
        return;
      }
      const StateId next_id = id_of(next);
      if (!calm_moves.empty() && move == calm_moves.front()) states_[id].calm = next_id;
      if (states_.emplace(next_id, State{next_id, id, move}).second) {
        next_.emplace_back(next_id, std::move(next));
      }
    }
  }

  void drain(const StateId& id, World world) {
    world.drain();
    if (!world.violation().has_value()) return;
    result_.violation = world.violation();
    result_.moves = path_to(id) + "then faults stop";
  }

  std::string path_to(StateId id) const {
    std::string path;
    while (!(states_.at(id).parent == StateId{})) {
      path = to_string(states_.at(id).move) + ", " + path;
      id = states_.at(id).parent;
    }
    return path;
  }

  // Every state leads to one at rest, which leads to itself.
  void check_rest() {
    std::unordered_map<StateId, bool, StateIdHash> rests;
    for (const auto& entry : states_) {
      std::vector<StateId> path;
      StateId id = entry.first;
      while (!rests.contains(id)) {
        path.push_back(id);
        rests.emplace(id, false);  // until the path has come to its end
        if (states_.at(id).calm == id) rests[id] = true;
        id = states_.at(id).calm;
      }
      if (!rests.at(id)) {
        result_.violation = Violation{Invariant::kDrains, "the world does not come to rest"};
        result_.moves = path_to(entry.first);
        return;
      }
      for (const StateId& visited : path) rests[visited] = true;
    }
  }

  SearchResult result_;
  std::unordered_map<StateId, State, StateIdHash> states_;
  std::vector<std::pair<StateId, World>> next_;
};

}  // namespace

SearchResult search(const WorldConfig& config) { return Search().run(config); }

}  // namespace crossdock::testing
