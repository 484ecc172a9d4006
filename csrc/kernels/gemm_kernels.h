// The kernels that linear() chooses from. Which exist depends on the instruction set.
#pragma once

#include "gemm_walk.h"

namespace penstock {

// x and w in bfloat16 on tile registers.
void linear_amx(const Panels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                std::byte* shared, const Worker& worker);
int64_t amx_scratch_bytes(const Panels& p, int64_t rows);
int64_t amx_shared_bytes(const Panels& p, int64_t rows);
// As linear_units() (gemm_units.h).
void linear_amx_units(const Panels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                      Range units, std::byte* scratch);
int64_t amx_units_scratch_bytes(const Panels& p, int64_t rows);

// x and w in bfloat16 with dot products of pairs.
void linear_dot(const Panels& p, const InputRows& x, const Epilogue& e, int64_t rows, Range units,
                std::byte* scratch);
int64_t dot_scratch_bytes(const Panels& p, int64_t rows);

// Every pair of formats, in float32.
void linear_fma(Elem weights, const Panels& p, const InputRows& x, const Epilogue& e, int64_t rows,
                Range units, std::byte* scratch);
int64_t fma_scratch_bytes(Elem weights, const Panels& p, int64_t rows);

}  // namespace penstock
