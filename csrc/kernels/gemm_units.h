// A product as one thread carries it out that shares nothing with others: some of a matrix's units
// for some rows. Products of experts are made of these (gemm_experts.h). Every element has the bits
// that linear() gives it.
#pragma once

#include "gemm_block.h"
#include "gemm_codebook.h"
#include "gemm_cuts.h"
#include "gemm_epilogue.h"
#include "gemm_grid.h"
#include "gemm_int.h"

namespace penstock {

// The columns of `units` of `rows` rows of x, kRowBlock at most, through the epilogue, whose rows
// count from the first of x. `ready`: scratch is as a call for the same rows of x and a matrix of
// the same shape left it, so that they need not be packed or quantized again.
template <class Matrix>
void linear_units(const Matrix& w, const InputRows& x, const Epilogue& e, int64_t rows,
                  Range units, bool ready, std::byte* scratch);

// Scratch for that, 64-byte aligned, for up to so many rows.
template <class Matrix>
size_t linear_units_scratch_bytes(const Matrix& w, int64_t rows);

}  // namespace penstock
