// Which experts a token is given to, and the sum of what they make of it: the ops `Route` and
// `CombineExperts` of plan/ops. Each row is computed by one thread, in an order that depends on its
// columns alone.
#pragma once

#include "../types.h"

namespace penstock {

struct RouteArgs {
  Array logits;    // [tokens, experts] f32
  Array ids;       // [tokens, chosen] i32
  Array shares;    // [tokens, chosen] f32
  bool over_all;   // shares are of a softmax over all scores, else over the chosen ones
  bool normalize;  // and divided by their sum
};

// Ids of the highest scores in descending order, the lower id first where scores are equal; a NaN
// counts as the lowest, so that all ids are there whatever the scores are.
void route(const RouteArgs& args, int64_t tokens, const Worker& worker);

struct CombineArgs {
  Array x;       // [chosen * tokens, c] f32
  Array shares;  // [tokens, chosen] f32
  Array out;     // [tokens, c] f32
};

// out[t] = sum over ascending i of shares[t, i] * x[chosen * t + i].
void combine_experts(const CombineArgs& args, int64_t tokens, const Worker& worker);

}  // namespace penstock
