// Columns put where another op reads them: the `Features` and `Join` ops of plan/ops, and
// `GatherColumns` of backends/cpu/ordered.py.
#pragma once

#include <vector>

#include "../types.h"

namespace penstock {

struct FeaturesArgs {
  Array out;      // [T, cols] f32
  int64_t first;  // column of the step's features
};

// out[t] = features[t, first : first + cols]. Each worker takes whole rows.
void copy_features(const FeaturesArgs& args, const StepView& step, const Worker& worker);

struct JoinArgs {
  std::vector<Array> xs;  // each [rows, c], f32 or bf16
  Array out;              // [rows, sum of c] f32 or bf16; aliases none of them
  int heads = 1;          // equal shares of the columns of each
};

// out = xs side by side, head by head, rounded to out's element type. Each worker takes whole rows.
void join(const JoinArgs& args, int64_t rows, const Worker& worker);

struct Gathered {
  Array out;             // as x; shares no memory with it
  const int32_t* order;  // [cols] columns of x
};
struct GatherArgs {
  Array x;  // [rows, cols] f32 or bf16
  std::vector<Gathered> into;
};
constexpr int64_t kGathered = 1024;  // columns that are gathered at a time

// Of each: out[r][j] = x[r][order[j]]; an order that names no column takes the last one. Workers
// share pieces of rows.
void gather_columns(const GatherArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
