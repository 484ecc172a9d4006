// What this machine can do, measured: the ceilings that a benchmark compares kernels with.
#pragma once

#include <cstddef>

namespace penstock {

// Bytes a second that `threads` threads read from one array of `bytes`, each its own contiguous
// share. The best of the passes that fit into about half a second, three at least.
double measure_read_bandwidth(size_t bytes, int threads);

// Multiply-add operations a second, each counted as two, of the best instruction this variant has
// for bfloat16 products: TDPBF16PS, VDPBF16PS, or float32 fused multiply-add without either.
double measure_bf16_flops(int threads);

// The same for 8-bit integer products: TDPBUSD, VPDPBUSD, or PMADDUBSW and its additions. 0 on a
// variant that has none.
double measure_int8_ops(int threads);

}  // namespace penstock
