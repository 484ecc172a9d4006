// The shape of a draft tree; interface/step.py says what tree_parents are.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

constexpr int kMostTreeRows = 64;  // of a sequence, behind the trunk: interface/draft_tree.py

// How many of a sequence's rows precede its first fork: each the child of the one before it, and an
// ancestor of all that follow. All rows where nothing branches.
inline int trunk_rows(const int32_t* parents, int rows) {
  int trunk = rows;
  for (int r = 0; r < rows; ++r)
    if (parents[r] != r - 1) trunk = std::min(trunk, parents[r] + 1);
  return trunk;
}

}  // namespace penstock
