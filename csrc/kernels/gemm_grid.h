// Matrix products with weights on an 8-bit grid: out = x @ W^T + bias, optionally gated.
//
// A row of W has one scale, so a weight is w_scale[n] times an integer of 8 bits; a row of x is
// quantized to 8 bits with one scale, max|x| / 127. Both are of the rows' Hadamard transform
// (hadamard.h), which spreads what is large. Then
//   out = float(dot of all k integers) * (x_scale * w_scale[n]),
// where the dot is one exact int32. No order of arithmetic can be seen in it: rows, instruction
// sets, threads and blockings all agree to the bit.
//
// With 4 bits, 16 k of a row of W form a group that uses 16 of the grid's points: code u stands
// for step * (u - origin), step 1..16, origin 0..15. The two share a byte, so a weight takes 4.5
// bits, and once expanded to the grid it is an 8-bit weight like any other. (Two-level scales, as
// in QServe, Lin et al. 2024, with an origin inside the grid.)
//
// Panels. 16 output columns form a panel; panels follow each other without gaps, gate and up
// alternating as in gemm.h. The integers are stored plus 128, in lines of 16 columns by 4 k:
// operands of VPDPBUSD and, 16 of them, of an AMX tile.
//   8 bits: [K/64][16][16][4], then 16 float scales.
//   4 bits: for each 128 k 16 lines of 16 columns by 8 k, the first 4 in the low nibbles, then 16
//           bytes for each of 8 groups: step - 1 in the low nibble, origin in the high one. After
//           the last, 16 float scales.
// k is padded to 64 or 128; what pads it is multiplied by zeros.
#pragma once

#include <vector>

#include "gemm.h"

namespace penstock {

struct GridMatrix {
  int bits;   // 8 or 4
  int64_t n;  // output columns; a gated matrix holds twice as many
  int64_t k;  // at most kMostGridDepth
  bool gated;
  const std::byte* panels;  // packed_bytes() of them, 64-byte aligned
  const float* bias;        // as in PackedMatrix
  bool weight_only = false;  // x stays as it is: gemm_points_format.h
  // (One row, of the bandwidth of a plain read, 4 bits and 8: 1 KiB ahead 90 and 108 %, 2 KiB 99 and
  // 110, 4 KiB 85 and 100. Zen 4, 8 bits, one panel and two: 8 rows of 3,072 k 246 and 358 Gop/s, of 1,024 k 334
  // and 337; 5 rows 198 and 230, 253 and 221.)
  Tuning tuning{.stream_ahead = weight_only ? decoded_ahead(2 << 10)
                                : bits == 8 ? codes_ahead(2 << 10)
                                            : unpacked_ahead(2 << 10),
                .streamed_rows = bits == 4 ? 2 : shared_into_l2() ? 4 : 8,
                .tile_rows_from = 3,
                .shared_into_l2 = shared_into_l2()};
};

constexpr int64_t kGridGroup = 16;  // k that share a step and an origin, with 4 bits

// Dots are summed in int32, biased by 128: 255 * 127 * k must fit.
constexpr int64_t kMostGridDepth = int64_t(1) << 16;

size_t packed_bytes(const GridMatrix& w);

// Rows as quantized, before they are packed.
struct GridRows {
  const int8_t* codes;     // [n, k]: the grid's integers, -127..127, or with 4 bits u, 0..15
  const uint8_t* windows;  // [n, ceil(k / kGridGroup)]: step - 1 + 16 * origin; null with 8 bits
  const float* scales;     // [n]
};

// Rounds a row of k values, or its transform, to the grid: codes [k], windows [ceil(k / kGridGroup)]
// with 4 bits. False if a value is not finite. `scratch` is for the caller to keep from row to row.
bool quantize_grid_row(int bits, Elem elem, bool transformed, const std::byte* row, int64_t k, int8_t* codes,
                       uint8_t* windows, float& scale, std::vector<float>& scratch);

// Pack a part of n rows. Otherwise as pack_part.
void pack_grid_part(const GridMatrix& w, const GridRows& rows, int64_t n, PartPlace place,
                    std::byte* panels, const Worker& worker);

// As pack_grid_part, from `rows` [n, k] of floats. False if this worker met a value that is not
// finite.
bool quantize_grid_part(const GridMatrix& w, Elem elem, const std::byte* rows, int64_t n,
                        PartPlace place, std::byte* panels, const Worker& worker);

}  // namespace penstock
