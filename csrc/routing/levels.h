// Replicas in the order of their loads.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "replica_set.h"

namespace penstock {

// A replica that there is not.
struct UnknownReplica : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A level for each replica, and the least of any set of replicas; what it tells is defined by
// penstock/routing/levels.py. Beside the levels it has the least of each 64, so that of a set of nearly
// all only those few are looked at one by one that may have the least.
class LoadLevels {
 public:
  void put(size_t replica, int64_t level);
  void drop(size_t replica);

  bool knows(size_t replica) const {
    return replica < levels_.size() && levels_[replica] != kNone;
  }
  // Throws UnknownReplica.
  int64_t level(size_t replica) const;
  // The least and the greatest of all replicas; none: there are no replicas.
  std::optional<int64_t> lowest() const;
  std::optional<int64_t> highest() const;
  // The least level of a set, and the replicas of it that have it. Throws UnknownReplica unless a
  // replica of the set has a level.
  int64_t least(const ReplicaSet& among, ReplicaSet& equal) const;

 private:
  static constexpr int64_t kNone = INT64_MAX;

  std::vector<int64_t> levels_;  // as many as 64 replicas each have
  std::vector<int64_t> least_;   // of each 64
};

}  // namespace penstock
