// Columns of several ranks put together: the `AllGather` and `GatherToFirst` ops of plan/ops.
#pragma once

#include <vector>

#include "rank_group.h"
#include "types.h"

namespace penstock {

struct ColumnRange {
  int64_t first, end;
};

struct AllGatherArgs {
  Array x;                         // [rows, columns of this rank]
  Array out;                       // [rows, columns], of the same element type; no byte of x
  std::vector<ColumnRange> ranks;  // columns of out that each rank has
  bool to_first = false;           // rank 0 alone has an out
};

// Writes the rank's columns into its slot, and those of all ranks into out, if it has one. If the
// group is given up, out holds anything. Workers share rows, or pieces of the columns of few rows.
void all_gather(const AllGatherArgs& args, int64_t rows, RankGroup& ranks, const Worker& worker);

}  // namespace penstock
