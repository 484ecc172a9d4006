// Matrix products with weights in codebooks of rows (SqueezeLLM): out = x @ W^T + bias, optionally
// gated.
//
// A row of W, which is an output column here, has 8 or 16 values of its own. A weight is the one that
// its code of 3 or 4 bits names, plus what an outlier has more than that. An output is 16 chains of
// fused multiply-adds from zero, lane m having the k = 32 s + 2 m and 32 s + 2 m + 1 of ascending s, which
// are added as hsum() adds lanes. Outlier i of the row belongs to chain i % 4 of four others from zero;
// (0 + 1) + (2 + 3) of these comes last. So its order depends on k and on the outliers alone, and a row of x by itself has the bits that it
// has among others. x is in bfloat16 where the values are and something multiplies both (a pair is one
// operation there, VDPBF16PS), else in float32.
//
// (Kim et al., SqueezeLLM: Dense-and-Sparse Quantization, arXiv 2306.07629, has the format's idea.)
#pragma once

#include <algorithm>

#include "gemm.h"

namespace penstock {

// As places of outliers are stored: in 16 bits.
constexpr int64_t kMostCodebookDepth = int64_t(1) << 16;
// So that the number of a row's first outlier is a 32-bit one.
constexpr int64_t kMostOutliers = INT32_MAX;

struct CodebookMatrix {
  int bits;          // 3 or 4
  Elem values;       // of codebooks, as they are stored: f32 or bf16
  int64_t n;         // output columns; a gated matrix holds twice as many
  int64_t k;         // up to kMostCodebookDepth
  bool gated;
  int64_t outliers;  // of all rows
  const std::byte* panels;  // packed_bytes() of them, 64-byte aligned
  const float* bias;        // as in PackedMatrix
  // With a line of each of eight columns in turn, two lines are no distance.
  Tuning tuning{.stream_ahead = std::max(decoded_ahead(4 << 10), int64_t{1} << 10)};
};

// Rows of a file, and what belongs to them.
struct CodebookRows {
  const std::byte* codes;  // [n][words of 4 bytes], a stream of bits each, the first code in the lowest
  const float* values;     // [n][2^bits], rounded to the matrix's type when they are packed
  const int32_t* ends;     // [n + 1]: row r has the outliers from ends[r] to ends[r + 1]
  const int32_t* columns;  // of outliers, ascending in a row
  const float* outliers;   // what weights are there, rounded likewise
};

constexpr int64_t codebook_row_bytes(int bits, int64_t k) { return (k * bits + 31) / 32 * 4; }

size_t packed_bytes(const CodebookMatrix& w);

// Whether outliers of n rows are those that `ends` and `columns` have room for, each in the matrix,
// ascending in a row.
bool outliers_in_order(const CodebookMatrix& w, std::span<const int32_t> ends,
                       std::span<const int32_t> columns);

// Pack a part of n rows of a file, whose first outlier is `first` of the matrix's. Otherwise as
// pack_part.
void pack_codebook_part(const CodebookMatrix& w, const CodebookRows& rows, int64_t n, int64_t first,
                        PartPlace place, std::byte* panels, const Worker& worker);

}  // namespace penstock
