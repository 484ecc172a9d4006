// What the kernels of integer products share: how quantized rows lie in memory.
#pragma once

#include "gemm_epilogue.h"
#include "gemm_int_simd.h"
#include "gemm_panels.h"

namespace penstock {

// Rows of x as quantized. A row holds its codes, then for each group the scale (float) and what the
// dot starts from (int32), which with zero points is to be multiplied by them. Rows lie an odd
// number of cache lines apart: at a power of two the sixteen rows of a tile would fight for one set
// of the cache.
struct IntRows {
  std::byte* data;
  int64_t scales_at;
  int64_t starts_at;
  int64_t row_bytes;

  IntRows(const PanelView& p, std::byte* memory)
      : data(memory),
        scales_at(p.depth),
        starts_at(scales_at + p.groups() * 4),
        row_bytes(round_up(starts_at + p.groups() * 4, 64) / 64 * 64) {
    if (row_bytes / 64 % 2 == 0) row_bytes += 64;
  }

  std::byte* row(int64_t r) const { return data + r * row_bytes; }
  int8_t* codes(int64_t r) const { return reinterpret_cast<int8_t*>(row(r)); }
  float* scales(int64_t r) const { return reinterpret_cast<float*>(row(r) + scales_at); }
  int32_t* starts(int64_t r) const { return reinterpret_cast<int32_t*>(row(r) + starts_at); }
};

constexpr int64_t kIntMostBand = 32;  // rows of a band, at most; all of them are read

// Quantized rows that are multiplied at once stay in L2, in half of one of 2 MiB. (Zen 4, L2 of a MiB, int8 by 64, 512
// rows, one thread: with half of it for rows K = 2048 and 8192 as fast, K = 1024, whose rows are then two blocks, 2 %
// slower.)
constexpr int64_t kIntRowBlockBytes = 1 << 20;
constexpr int64_t int_row_block(int64_t row_bytes, const Tuning& t) {
  const int64_t rows = std::min(t.cache_bytes, kIntRowBlockBytes) / row_bytes;
  return std::max(kIntMostBand, rows / kIntMostBand * kIntMostBand);
}

// Unsigned codes u stand for u - zero. Kernels sum u * x, so a group's dot starts from
// -zero * (sum of x), where there are no zero points -offset. Where no instruction multiplies unsigned
// bytes of full range by signed ones exactly, kernels take the offset away themselves.
constexpr int32_t kept_zero(int bits, int32_t offset) {
  return bits == 8 && kSignedBytes ? 0 : offset;
}

// A block in vector registers: rows of x from `row` on by panels from `weights` on. ahead: how far
// weights are prefetched, or 0. sums: [panel][row][16].
using IntMultiply = void (*)(const PanelView& p, const IntRows& x, int64_t row,
                             const std::byte* weights, int64_t ahead, float* sums);

#if defined(__aarch64__)
// 4 rows by 16 columns of dots are 16 of 32 registers, beside weights and x; the float sums wait in
// memory, for a group is eight steps or more. (Of 6 rows by matrix instructions GCC 12 keeps some in
// memory: 24 to 26 instructions a row for 16 k, of 4 rows 21 to 23.)
constexpr int kIntNeonRows = 4;
// Up to so many rows by one panel.
IntMultiply int_neon_multiply(WeightFormat format, int64_t rows);
#endif

// The kernels. Rows [0, rows) of x, output columns of `units`. hot: int_hot_bytes() of scratch. expanded:
// room for as many panels as are expanded at once, where they are sparse.
void int_linear_registers(const PanelView& p, const IntRows& x, const Epilogue& e, int64_t rows,
                          Range units, std::byte* hot, std::byte* expanded);
void int_linear_amx(const PanelView& p, const IntRows& x, const Epilogue& e, int64_t rows,
                    Range units, std::byte* hot, std::byte* expanded);
int64_t int_registers_hot_bytes();
int64_t int_amx_hot_bytes(const PanelView& p);

}  // namespace penstock
