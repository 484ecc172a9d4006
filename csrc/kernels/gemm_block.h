// Matrix products with weights in blocks, as files have them: out = x @ W^T + bias, optionally gated.
//
// A block is 32 k of a row, with a scale of its own. The product is that of gemm_int.h in groups of
// 32: x is quantized likewise, each dot is exact, and a group is one fused multiply-add. What codes
// and scales stand for is in gemm_formats.h.
//
// Panels: as of gemm_int.h, but for segments of several groups, whose codes come before their scales,
// as the file has them: of 64 k, mxfp4 of 128. k is padded to whole segments.
#pragma once

#include "gemm.h"

namespace penstock {

// How codes and scales of groups lie: those of IntMatrix, and blocks.
enum class WeightFormat : uint8_t { int8, int4, q8_0, q4_0, mxfp4 };

constexpr int64_t kBlockK = 32;

struct BlockMatrix {
  WeightFormat format;  // of blocks
  int64_t n;            // output columns; a gated matrix holds twice as many
  int64_t k;            // a multiple of 32, at most kMostIntDepth
  bool gated;
  const std::byte* panels;  // packed_bytes() of them, 64-byte aligned
  const float* bias;        // as in PackedMatrix
  // On vector registers alone.
  Tuning tuning{.stream_ahead = 4 << 10, .streamed_rows = 2, .tile_rows_from = int64_t(1) << 40};
};

size_t packed_bytes(const BlockMatrix& w);

// Bytes of a block in a file.
int64_t block_bytes(WeightFormat format);

// Pack a part of n rows of a file, blocks of k each. Otherwise as pack_part.
void pack_block_part(const BlockMatrix& w, const std::byte* rows, int64_t n, PartPlace place,
                     std::byte* panels, const Worker& worker);

}  // namespace penstock
