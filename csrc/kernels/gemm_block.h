// Matrix products with weights in blocks, as files have them: out = x @ W^T + bias, optionally gated.
//
// A weight is scale * point + least, where scale and least are those of its group of 32 k, or 16
// (gemm_block_format.h). Each row of x is quantized to 8 bits in groups of 32 as in gemm_int.h; then
//   out = sum over ascending groups g of  (x_scale[g] * scale[g]) * (dot of codes and points in g)
//                                    and  least[g] * (x_scale[g] * (sum of x's codes in g)),
// each a float32 fused multiply-add. Dots and sums of codes are integers, hence exact.
//
// Superblocks are of 256 k, and x is rounded in groups of 32 all the same: of Gemma 3 270M's inputs of
// 256 k and more, which have values up to 340 times the median, products then differ from exact ones by
// 0.7 %, and with one scale for 256 k by 1.5 %.
//
// weight_only, x stays as it is, in bfloat16 where something multiplies that, else in float32:
//   out = sum over ascending groups g of  scale[g] * (sum over the k of g of x * point)
//                                    and  least[g] * (sum of x in g),
// likewise. The inner sum of products is one chain of additions from zero, that of x a sum of 16
// lanes: their order depends on the instruction set alone.
//
// Points of a lattice have one scale, and on tiles all k are one group of theirs (gemm_lattice_expand.h).
//
// Points that are no whole numbers (E4M3, NF4, FP4: gemm_block_points.h) are always multiplied so. Where
// x is in bfloat16, NF4's and FP4's are rounded to it, as any weight of a model in bfloat16.
//
// Panels: as of gemm_int.h, but their segments are those of a format. k is padded to whole segments.
#pragma once

#include "gemm.h"

namespace penstock {

// Of codes and scales: those of IntMatrix, and blocks.
enum class WeightFormat : uint8_t {
  int8, int4,
  q4_0, q4_1, q5_0, q5_1, q8_0,
  q2_k, q3_k, q4_k, q5_k, q6_k,
  iq4_nl, iq4_xs, mxfp4, nvfp4,
  fp8_128, fp8_32, mxfp8, nf4, fp4, nvfp4_scaled,
  e8p, small_e8,
};

// Whether codes become bytes by so few instructions that they are prefetched as bytes are.
constexpr bool read_as_bytes(WeightFormat format) {
  return format == WeightFormat::q8_0 || format == WeightFormat::q5_0 || format == WeightFormat::q5_1;
}

struct BlockMatrix {
  WeightFormat format;  // of blocks
  int64_t n;            // output columns; a gated matrix holds twice as many
  int64_t k;            // of whole blocks
  bool gated;
  const std::byte* panels;  // packed_bytes() of them, 64-byte aligned
  const float* bias;        // as in PackedMatrix
  bool weight_only = false;
  Tuning tuning{.stream_ahead = weight_only             ? decoded_ahead(4 << 10)
                                : read_as_bytes(format) ? codes_ahead(4 << 10)
                                                        : unpacked_ahead(4 << 10)};
};

// As kMostIntDepth: a file's rows are shorter.
constexpr int64_t kMostBlockDepth = int64_t(1) << 20;

size_t packed_bytes(const BlockMatrix& w);

// Whether weights are points of a lattice.
constexpr bool of_lattice(WeightFormat format) {
  return format == WeightFormat::e8p || format == WeightFormat::small_e8;
}

// Whether products may round x: points are whole numbers.
bool has_whole_points(WeightFormat format);

// Bytes of k columns of a row in a file; 0 where they are no whole blocks.
int64_t block_row_bytes(WeightFormat format, int64_t k);

// Pack a part of n rows of a file. Otherwise as pack_part.
void pack_block_part(const BlockMatrix& w, const std::byte* rows, int64_t n, PartPlace place,
                     std::byte* panels, const Worker& worker);

// The values of a row of a matrix that is not gated: k of them.
void block_row(const BlockMatrix& w, int64_t row, float* values);

}  // namespace penstock
