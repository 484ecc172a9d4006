// Each head's columns times a matrix of its own: the `HeadLinear` op of plan/ops.
#pragma once

#include "../types.h"
#include "gemm.h"

namespace penstock {

struct HeadLinearArgs {
  PackedMatrix w;  // of all heads, one behind the other: each has out.cols / heads columns of
                   // output, in whole panels, and w.k of input
  Array x;         // [rows, heads * w.k] f32 or bf16
  Array out;       // [rows, heads * n] f32 or bf16; apart from x
  int heads;
};

// Scratch on each thread.
size_t head_linear_scratch_bytes(const HeadLinearArgs& args, int64_t rows);

// Threads share all heads' panels. An output element has the bits that it has in linear().
void head_linear(const HeadLinearArgs& args, int64_t rows, const Worker& worker);

}  // namespace penstock
