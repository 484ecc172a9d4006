// Matrix products with weights quantized to 8 or 4 bits: out = x @ W^T + bias, optionally gated.
//
// A row's k columns are divided into groups that share a scale. Each row of x is quantized to 8
// bits over the same groups: scale = max|x| / 127, codes = x / scale rounded to nearest even. Then
//   out = sum over ascending groups g of (x_scale[g] * w_scale[g]) * (dot of codes in g),
// one float32 fused multiply-add a group. The dots are integers, hence exact: which instructions
// compute them, and in which order, cannot be seen in the result. So one row may take VNNI and 512
// rows AMX, and still every row's bits are the same in any batch and on any number of threads.
//
// Panels. 16 output columns form a panel; panels follow each other without gaps, gate and up
// alternating as in gemm.h. In a panel, each group's codes are followed by its 16 float32 scales.
// Codes are unsigned, offset by 128 or 8, in lines of 64 bytes:
//   8 bits: 16 columns by 4 k;
//   4 bits: 16 columns by 8 k, the first 4 in the low nibbles.
// So a line is an operand of VPDPBUSD, and 16 of them (or 8 unpacked) an AMX tile. k is padded to a
// whole number of groups; what pads it is multiplied by zeros.
//
// With zero points a code stands for (code - zero) * w_scale[g], and a dot is of x with code - zero.
// Behind a panel's groups lie 16 bytes for each, the zeros, offset as the codes are.
//
// Sparse panels hold two codes of each four k of a column. A segment's codes are runs of 32 k: 8 masks of
// 64 bits, one for each line of bytes, whose bit 4 * column + k says that the code of this byte is held;
// then these codes in the order of their bits, of 8 bits 32 bytes for a line, of 4 bits 32 bytes for two,
// the first in the low nibbles. What is not held stands for zero. So kernels expand a line in registers,
// and everything behind that is as with dense panels (gemm_int_sparse.h).
#pragma once

#include "gemm.h"

namespace penstock {

struct IntMatrix {
  int bits;       // 8 or 4
  int64_t group;  // k per scale, a multiple of 32; 0: the whole row
  int64_t n;      // output columns; a gated matrix holds twice as many
  int64_t k;
  bool gated;
  const std::byte* panels;  // packed_bytes() of them, 64-byte aligned
  const float* bias;        // as in PackedMatrix
  bool zero_points = false;
  bool weight_only = false;  // x stays as it is: gemm_points_format.h
  bool sparse = false;       // panels are; not where weight_only, and where expands_sparse()
  // Tiles: 4-bit codes must be unpacked for them. (K = 2048, TOP/s in registers and in tiles: 8 bits,
  // 8 rows 0.15 and 0.15, 16 rows 0.23 and 0.29; 4 bits in groups of 32, 16 rows 0.26 and 0.23, 32
  // rows 0.31 and 0.31.)
  Tuning tuning{
      .stream_ahead = weight_only            ? decoded_ahead(4 << 10)
                      : bits == 8 && !sparse ? codes_ahead(4 << 10)
                                             : unpacked_ahead(4 << 10),
      .streamed_rows = 2, .tile_rows_from = bits == 8 ? 9 : 17, .cache_bytes = second_level_cache()};
};

// Dots are summed in int32: 127 * 127 * k must fit, and where one zero point is of so many k,
// 255 * 127 * k.
constexpr int64_t kMostIntDepth = int64_t(1) << 17;
constexpr int64_t kMostZeroedDepth = int64_t(1) << 16;

// Whether weights alone may be quantized in groups of so many k: slices must be of whole groups.
constexpr bool has_points(int64_t group) {
  return group == 0 || group == 32 || group == 64 || group == 128;
}

// Scales of one row of a matrix.
int64_t int_groups(int64_t k, int64_t group);

size_t packed_bytes(const IntMatrix& w);

// Rows of a matrix as rounded, before they are packed.
struct GroupRows {
  const int8_t* codes;   // [n, k], -127..127 (with zero points -128) or -8..7
  const float* scales;   // [n, int_groups]
  const int8_t* zeros;   // likewise; null without zero points
};

// Pack a part of n rows. Otherwise as pack_part. False where panels are sparse and a row has three codes
// of four that do not stand for zero.
bool pack_int_part(const IntMatrix& w, const GroupRows& rows, int64_t n, PartPlace place,
                   std::byte* panels, const Worker& worker);

// The values [k] of one row of a matrix that is not gated: (code - zero) * scale.
void int_row(const IntMatrix& w, int64_t row, float* values);

}  // namespace penstock
