// More rows by codes of half a byte, with the instructions of AVX2 alone, where a dot of bytes is several.
//
// PMADDUBSW wants one operand unsigned and saturates at 16 bits. Codes less their origin are signed and small, so rows
// are what is unsigned: plus 128, which a constant of each column takes away again. A lane then gains at most
// 8 * 15 * 255 from a group, so that 16 bits hold it, and one PMADDWD adds up its pairs and multiplies by the step: 9
// instructions for 8 columns by 16 k of a row, where bytes of the grid take 16.
//
// A panel is made ready once for all rows: [group][half] of 4 lines of 8 columns by 4 k, and the steps, each twice.
#pragma once

#include "gemm_grid_blocks.h"
#include "gemm_int_simd.h"

namespace penstock {

constexpr int kCenteredRows = 8;  // of a tile, at most

// Bytes of a panel that is made ready.
inline int64_t centered_bytes(const GridPanels& p) {
  return p.steps * kStepGroups * 5 * kLineBytes + kLineBytes;
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)

// Makes a panel ready; at its end what rows, which are plus 128, have too much of in each column, negated.
inline void center_panel(const GridPanels& p, const std::byte* panel, std::byte* to) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i to_bytes = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                            8, 8, 8, 8, 12, 12, 12, 12);
  __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  __m256i* out = reinterpret_cast<__m256i*>(to);
  for (int64_t s = 0; s < p.steps; ++s) {
    const __m256i* codes = reinterpret_cast<const __m256i*>(panel + p.step_at(s));
    const std::byte* const windows = panel + p.windows_at(s);
    for (int64_t g = 0; g < kStepGroups; ++g, codes += 4) {
      const i32x16 both = i32x16::widen(windows + g * kPanelColumns);
      const i32x16 step = both.masked(15) + i32x16::broadcast(1), origin = both.right(4);
      const __m256i steps[2] = {step.lo, step.hi}, origins[2] = {origin.lo, origin.hi};
      for (int half = 0; half < 2; ++half, out += 5) {
        const __m256i by = _mm256_or_si256(steps[half], _mm256_slli_epi32(steps[half], 16));
        const __m256i less = _mm256_shuffle_epi8(origins[half], to_bytes);
        __m256i total = _mm256_setzero_si256();
        for (int line = 0; line < 2; ++line) {
          const __m256i pair = codes[2 * line + half];
          const __m256i a = _mm256_sub_epi8(_mm256_and_si256(pair, low), less);
          const __m256i b = _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(pair, 4), low), less);
          out[2 * line] = a;
          out[2 * line + 1] = b;
          total = _mm256_add_epi8(total, _mm256_add_epi8(a, b));  // at most 4 * 15
        }
        out[4] = by;
        sums[half] = _mm256_sub_epi32(
            sums[half],
            _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), total), by));
      }
    }
  }
  for (int half = 0; half < 2; ++half) out[half] = _mm256_slli_epi32(sums[half], 7);
}

// A GridMultiply of a panel made ready. ahead: from the panel's own codes to those of the next, which are prefetched.
template <int Rows>
void multiply_centered(const GridPanels& p, const QuantizedRows& x, int64_t row, const std::byte* panel, int64_t ahead,
                       std::byte* ready, int32_t* dots) {
  __m256i sums[2][Rows];
  for (int half = 0; half < 2; ++half)
    for (int r = 0; r < Rows; ++r) sums[half][r] = _mm256_setzero_si256();
  const int8_t* x_codes = x.codes_at(row, 0);
  const __m256i* w = reinterpret_cast<const __m256i*>(ready);
  for (int64_t s = 0; s < p.steps; ++s, x_codes += x.row_step()) {
    const std::byte* const next = panel + p.step_at(s) + ahead;
#pragma GCC unroll 1
    for (int g = 0; g < kStepGroups; ++g) {
      if (ahead)
        for (int line = 0; line < 2; ++line) __builtin_prefetch(next + (2 * g + line) * kLineBytes);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half, w += 5) {
        const __m256i a = w[0], b = w[1], c = w[2], d = w[3], steps = w[4];
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const int8_t* const at = x_codes + r * kGridStep + g * kGridGroup;
          const auto quad = [&](int q) __attribute__((always_inline)) {
            return _mm256_set1_epi32(load_quad(at + 4 * q));
          };
          const __m256i first = _mm256_add_epi16(_mm256_maddubs_epi16(quad(0), a), _mm256_maddubs_epi16(quad(1), b));
          const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(quad(2), c), _mm256_maddubs_epi16(quad(3), d));
          sums[half][r] =
              _mm256_add_epi32(sums[half][r], _mm256_madd_epi16(_mm256_add_epi16(first, second), steps));
        }
      }
    }
    if (ahead) __builtin_prefetch(panel + p.windows_at(s) + ahead);
  }
  for (int r = 0; r < Rows; ++r) {
    const __m256i offset = _mm256_set1_epi32(-x.starts[row + r]);  // the epilogue expects weights plus 128
    for (int half = 0; half < 2; ++half)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dots + r * kPanelColumns) + half,
                         _mm256_add_epi32(_mm256_add_epi32(sums[half][r], w[half]), offset));
  }
}

template <int Rows = kCenteredRows>
GridMultiply centered_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return centered_rows<Rows - 1>(rows);
  return multiply_centered<Rows>;
}

#endif

}  // namespace penstock
