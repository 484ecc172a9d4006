// What this machine can do, measured: the ceilings that a benchmark compares kernels with.
#pragma once

#include <cstddef>

namespace penstock {

// A rate, measured again and again until the best three measurements agreed or the time was over.
// Other work on the machine only ever takes from a rate, so the best is the truest, and as good as
// its spread is small.
struct Measured {
  double rate = 0;    // the best, a second; 0: this variant has no instruction for it
  double spread = 0;  // how much less the third best was, as a part of the best
};

// Each takes `seconds` at most, or one sample of some milliseconds, and about a third of a second on a quiet machine. `threads` threads
// measure at the same time, and their rates are added. Throw std::invalid_argument without threads.

// Bytes read from one array of `bytes`, each thread its own contiguous share: by as many streams, and
// by prefetching as far ahead, as is fastest here.
Measured measure_reading(size_t bytes, int threads, double seconds);

// Multiply-adds, each counted as two operations, on registers, of the best instructions that products have:
// of float32; of bfloat16 (TDPBF16PS, VDPBF16PS, or those of float32); and of bytes (TDPBUSD, VPDPBUSD,
// SDOT, or widening multiplications and their additions).
Measured measure_f32(int threads, double seconds);
Measured measure_bf16(int threads, double seconds);
Measured measure_int8(int threads, double seconds);

}  // namespace penstock
