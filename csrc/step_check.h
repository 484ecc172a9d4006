// A step's arrays, checked before anything is written.
//
// Python built the step and would be the one at fault, but an index out of bounds here corrupts
// another request's cache silently; the checks cost about a microsecond a thousand indices.
#pragma once

#include "executor.h"
#include "types.h"

namespace penstock {

// What the ops read beside tokens.
struct StepReads {
  int groups;  // of layers that are cached; the step has tables of each
  int64_t feature_cols;
  bool moves = true;     // whether slots can be moved: heads are of one size
  bool branches = true;  // whether draft trees can be run
  int state_slots = 0;
  int state_log = 0;  // tokens that may be taken back from a state
};

// Throws std::invalid_argument on a step that is malformed or exceeds the shape.
void check_step(const StepView& step, const CacheEdits& edits, const ExecutorShape& shape,
                const StepReads& reads);

// The same of the adapters of a step's sequences, where it has any (Executor::run).
void check_adapters(int sequences, const int32_t* adapters, int64_t slots);

}  // namespace penstock
