// Sums of products of columns: sums += x^T x, for rows x, as calibration wants of what a matrix multiplies.
#pragma once

#include <cstdint>
#include <vector>

#include "../memory.h"
#include "../pool.h"
#include "../types.h"

namespace penstock {

// Products are those of gemm.h, with x^T for both sides, so x is rounded to the element type as weights
// and inputs of such a product are, and sums are float32. Each sum's bits depend on the rows, their
// order and how they are divided among calls, not on threads.
class Gram {
 public:
  // Columns of a block: of the sums of a block of rows those up to its own last column are computed,
  // which costs half of a block more than a triangle.
  static constexpr int64_t kBlock = 256;

  // Threads as Pool has them. `elem`: f32 or bf16.
  Gram(int threads, Elem elem) : pool_(threads, false), elem_(elem) {}

  // Rows [tokens, columns] of float32, `stride` elements apart, are added to `sums` [columns, columns].
  // What is right of the square of kBlock columns on the diagonal is left as it was, since it mirrors
  // what is below.
  void add(const float* rows, int64_t tokens, int64_t columns, int64_t stride, float* sums);

 private:
  void add_some(const float* rows, int64_t tokens, int64_t columns, int64_t stride, float* sums);

  Pool pool_;
  Elem elem_;
  Memory turned_, panels_, made_, shared_;
};

}  // namespace penstock
