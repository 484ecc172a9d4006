// Which experts a token is given to, and the sum of what they make of it: the ops `Route`,
// `ScaleRows` and `CombineExperts` of plan/ops. Each row is computed by one thread, in an order that
// depends on its columns alone.
#pragma once

#include "../types.h"

namespace penstock {

// models/experts_spec.py says what is what.
enum class Scores : uint8_t { softmax, softmax_chosen, sigmoid, sparsemixer };

struct Routing {
  Scores scores;
  bool normalize;
  float normalize_eps = 0;
  float normalize_least = 0;
  float scale = 1;
  int groups = 1;
  int groups_chosen = 1;
  bool top2 = false;  // a group is worth its two highest, not its highest
  float jitter = 0;
};

struct RouteArgs {
  Array logits;              // [tokens, experts] f32
  Array ids;                 // [tokens, chosen] i32
  Array shares;              // [tokens, chosen] f32
  const float* choice_bias;  // [experts], or null
  const float* share_scale;  // [experts], or null
  Routing routing;
};

// All ids are those of experts, whatever the logits are.
void route(const RouteArgs& args, int64_t tokens, const Worker& worker);
size_t route_scratch_bytes(const RouteArgs& args);

struct ScaleRowsArgs {
  Array x;         // [chosen * tokens, c] f32 or bf16, or [tokens, c], of which row r / chosen is meant
  bool per_token;  // the latter
  Array by;        // [tokens, chosen] f32
  Array out;       // [chosen * tokens, c] f32 or bf16; may be x
  bool sigmoid;    // of `by`
};

void scale_rows(const ScaleRowsArgs& args, int64_t tokens, const Worker& worker);

struct CombineArgs {
  Array x;         // [chosen * tokens, c] f32
  Array shares;    // [tokens, chosen] f32; null data: each is 1
  Array out;       // [tokens, c] f32
  int64_t chosen;
};

// out[t] = sum over ascending i of shares[t, i] * x[chosen * t + i].
void combine_experts(const CombineArgs& args, int64_t tokens, const Worker& worker);

}  // namespace penstock
