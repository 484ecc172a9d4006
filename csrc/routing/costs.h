// What a request costs at replicas.
#pragma once

#include <cstdint>
#include <span>

#include "holder_index.h"
#include "loads.h"

namespace penstock {

// Where a request costs least.
struct Cheapest {
  int64_t cost;    // in grains
  int64_t cached;  // tokens of the prompt that are held there
  ReplicaSet replicas;
};

// The search for the cheapest replicas of a set; defined by penstock/routing/costs.py.
class Costs {
 public:
  Costs(HolderIndex& index, const LoadBook& loads) : index_(index), loads_(loads) {}

  // `among` is not empty. Valid until the next call. Throws UnknownReplica where none of a group that
  // holds equally much has joined.
  const Cheapest& cheapest(std::span<const Chain> chains, int64_t prompt, const ReplicaSet& among);

 private:
  void find_overlaps(std::span<const Chain> chains, const ReplicaSet& among);
  void consider(const ReplicaSet& replicas, int64_t added, int64_t cached);

  HolderIndex& index_;
  const LoadBook& loads_;
  Overlaps overlaps_;
  Cheapest best_;
  ReplicaSet left_, filled_, equal_;
};

}  // namespace penstock
