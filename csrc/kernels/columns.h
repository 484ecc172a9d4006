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
  const int32_t* order;  // [cols] columns of x; with ids, those of each expert
};
struct GatherArgs {
  Array x;  // [rows, cols] f32 or bf16
  std::vector<Gathered> into;
  // i32 [T, k]: row r of an output is in the order of expert ids[r / k][r % k]. Without, k is 0.
  Array ids{};
  bool shared = false;  // row r of an output is of row r / k of x, not of row r
};
constexpr int64_t kGathered = 1024;  // columns that are gathered at a time

// Of each: out[r][j] = x[r][order[j]] for that many rows of outputs; an order that names no column
// takes the last one. Workers share pieces of rows.
void gather_columns(const GatherArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
