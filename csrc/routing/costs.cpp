#include "costs.h"

#include <cmath>

namespace penstock {

namespace {

// A number of tokens as a whole number, also where weights make it greater than any.
int64_t whole(double tokens) {
  constexpr double most = double(int64_t{1} << 61);
  return tokens < most ? int64_t(tokens) : int64_t{1} << 61;
}

}  // namespace

const Cheapest& Costs::cheapest(std::span<const Chain> chains, int64_t prompt,
                                const ReplicaSet& among) {
  find_overlaps(chains, among);
  const LoadWeights& weights = loads_.weights();
  const int64_t lowest = loads_.work().lowest().value_or(0);
  best_.replicas.clear();
  for (Overlaps::Group& group : overlaps_.groups()) {
    const double uncached = double(prompt - group.held);
    const int64_t added = whole(std::ceil(uncached * weights.uncached / double(weights.grain)));
    // Neither this nor any shorter prefix costs less.
    if (best_.replicas.width() && lowest + added >= best_.cost) break;
    filled_ = group.replicas;
    bool any_filled = false, all_filled = true;
    for (size_t i = 0; i < filled_.width(); ++i) {
      uint64_t& word = filled_.words()[i];
      all_filled &= (word & ~index_.full().word(i)) == 0;
      any_filled |= (word &= index_.full().word(i)) != 0;
    }
    if (!all_filled) {
      if (any_filled) group.replicas.remove(filled_);
      consider(group.replicas, added, group.held);
    }
    if (any_filled)
      consider(filled_, added + whole(uncached * weights.lost) / weights.grain, group.held);
  }
  loads_.given().least(best_.replicas, equal_);
  std::swap(best_.replicas, equal_);
  return best_;
}

void Costs::consider(const ReplicaSet& replicas, int64_t added, int64_t cached) {
  const int64_t cost = loads_.work().least(replicas, equal_) + added;
  if (best_.replicas.width() && cost >= best_.cost) return;
  best_.cost = cost;
  best_.cached = cached;
  std::swap(best_.replicas, equal_);
}

void Costs::find_overlaps(std::span<const Chain> chains, const ReplicaSet& among) {
  overlaps_.clear();
  left_ = among;
  size_t known = 0;
  for (const Chain& chain : chains) {
    index_.prefixes(chain, left_, overlaps_);
    // A replica names what it holds in one way: of those that hold nothing here the next chain tells.
    for (; known < overlaps_.groups().size(); ++known) {
      Overlaps::Group& group = overlaps_.groups()[known];
      if (group.held)
        left_.remove(group.replicas);
      else
        group.replicas.clear();
    }
  }
  overlaps_.add(0).replicas = left_;
  overlaps_.sort();
}

}  // namespace penstock
