// Low-rank additions by the adapter of each row: the `AdapterDown` and `AdapterUp` ops of plan/ops.
//
// Rows of one adapter are a run; threads share units of runs. A sum has one order, whatever rows are
// beside its own and however many threads there are: of `down` four sums of every fourth step of k,
// added in pairs at the end; of `up` one sum over the rank.
#pragma once

#include <vector>

#include "../types.h"

namespace penstock {

constexpr int64_t kMostAdapterRank = 256;  // interface/adapters.py has the same
constexpr int64_t kAdapterColumns = 16;    // of a panel

// The rows of a step that have an adapter, one adapter's behind another's.
struct AdapterRows {
  struct Run {
    int32_t slot, first, end;  // of `rows`
  };
  std::vector<int32_t> rows;
  std::vector<Run> runs;
};

// What a slot has for a part; rank 0: nothing.
struct AdapterScale {
  int32_t rank;
  float scale;
};

// Bytes of a part in a slot: `down` in panels of 16 of its rows, in lines of 64 bytes, one or (bf16)
// two columns of k each; `up` in panels of 16 of its rows, each a line of 16 for each of the rank.
size_t adapter_down_bytes(Elem elem, int64_t rank, int64_t k);
size_t adapter_up_bytes(Elem elem, int64_t rank, int64_t n);

struct AdapterDownArgs {
  Array x, low;  // f32 or bf16, f32
  int64_t rank;  // the largest
  int64_t parts;
  Elem elem;                   // of weights: f32, or bf16
  const std::byte* weights;    // [slots][parts]
  const AdapterScale* scales;  // [slots][parts]
};

struct AdapterUpArgs {
  Array low, out;  // f32
  int64_t rank;
  std::vector<int64_t> columns;  // of each part
  int64_t at, parts;             // the first part's number among all parts of `scales`
  Elem elem;
  const std::byte* weights;    // [slots], the parts of this op one behind another
  const AdapterScale* scales;  // [slots][parts]
};

void adapter_down(const AdapterDownArgs& args, const AdapterRows& rows, const Worker& worker);
void adapter_up(const AdapterUpArgs& args, const AdapterRows& rows, const Worker& worker);

}  // namespace penstock
