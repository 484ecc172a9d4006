// Products of experts: the op `ExpertLinear` of plan/ops.
//
// An expert is a matrix like any other, and a stack of them lies one behind the other. The rows of a
// step are sorted by expert, and each expert's are multiplied by its units as linear_units() does:
// gathered where they are packed or quantized, scattered where the epilogue writes them. Only panels
// of experts that have rows are read, once for each row block. Threads share the units of these
// experts as if they were one long matrix; each makes the rows ready that it multiplies.
#pragma once

#include "gemm.h"
#include "gemm_block.h"
#include "gemm_codebook.h"
#include "gemm_grid.h"
#include "gemm_int.h"

namespace penstock {

// Units that threads take at a time: blocks of the kernels are whole.
constexpr int64_t kExpertUnits = 4;  // of a gated matrix half of them

struct ExpertsArgs {
  Array x;         // [chosen * tokens, k], or [tokens, k], of which row r / chosen is meant
  bool per_token;  // the latter
  Array ids;       // [tokens, chosen] i32, each below `experts`
  Array out;       // [chosen * tokens, n]
  int64_t experts;
  Gating gate;  // as of linear()
};

// From one expert's panels to the next one's.
template <class Matrix>
size_t expert_bytes(const Matrix& w) {
  return (packed_bytes(w) + 63) / 64 * 64;
}

// Tasks that threads share where all experts have rows.
constexpr int64_t expert_tasks(int64_t n, bool gated, int64_t experts) {
  const int64_t columns = kExpertUnits * kPanelColumns / (gated ? 2 : 1);
  return experts * ((n + columns - 1) / columns);
}

// out[r] = x[r] @ W[ids[r]]^T + bias, or gated as of linear(). w is the first expert; the bias of
// each is behind that of the one before it. Called by each of worker.count threads, and waits for
// none of them.
template <class Matrix>
void expert_linear(const Matrix& w, const ExpertsArgs& args, int64_t tokens, const Worker& worker);

// Scratch that it needs on each thread, for at most so many tokens.
template <class Matrix>
size_t expert_scratch_bytes(const Matrix& w, const ExpertsArgs& args, int64_t tokens);

}  // namespace penstock
