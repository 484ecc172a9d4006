// Products with sparse panels of integers.
#include "gemm_int_sparse.h"

#include <bit>
#include <cstring>

namespace penstock {

PanelView dense_of(const PanelView& p) {
  if (!p.sparse) return p;
  PanelView dense = p;
  dense.sparse = false;
  dense.scales_at = p.segment * kPanelColumns * p.bits / 8;
  dense.segment_bytes = dense.scales_at + kScaleBytes;
  dense.shifts_at = p.segments * dense.segment_bytes;
  dense.panel_bytes = dense.shifts_at + (p.panel_bytes - p.shifts_at);
  return dense;
}

#if defined(PENSTOCK_SPARSE_PANELS)

bool expands_sparse() { return __builtin_cpu_supports("avx512vbmi2"); }

namespace {

// Every machine with AVX-512 that is sold has these, but Cooper Lake.
#define PENSTOCK_EXPANDS __attribute__((target("avx512vbmi2")))
#define PENSTOCK_EXPANDS_INLINE PENSTOCK_EXPANDS __attribute__((always_inline)) inline

PENSTOCK_EXPANDS_INLINE __m512i expanded_line(__m512i zero, const std::byte* mask, __m256i held) {
  uint64_t bits;
  std::memcpy(&bits, mask, sizeof(bits));
  return _mm512_mask_expand_epi8(zero, _cvtu64_mask64(bits), _mm512_castsi256_si512(held));
}

// Lines of a run: one of 8 bits, or the two that share 32 bytes.
template <int Bits>
struct SparseLines {
  __m512i quads[kQuads<Bits>];

  static PENSTOCK_EXPANDS_INLINE SparseLines load(const std::byte* run, int i, __m512i zero) {
    const std::byte* const mask = run + i * kQuads<Bits> * 8;
    const __m256i codes = _mm256_load_si256(
        reinterpret_cast<const __m256i*>(run + kSparseMaskBytes + i * kSparseCodes));
    if constexpr (Bits == 8) {
      return {{expanded_line(zero, mask, codes)}};
    } else {
      const __m256i low = _mm256_set1_epi8(15);
      return {{expanded_line(zero, mask, _mm256_and_si256(codes, low)),
               expanded_line(zero, mask + 8,
                             _mm256_and_si256(_mm256_srli_epi16(codes, 4), low))}};
    }
  }
};

// The code that stands for zero, of each column's four bytes.
PENSTOCK_EXPANDS_INLINE __m512i zero_line(const PanelView& p, const std::byte* panel, int64_t g) {
  if (!p.zero_points) return _mm512_set1_epi8(char(code_offset(p.bits)));
  const __m512i wide = i32x16::widen(p.zeros(panel, g)).v;
  return _mm512_shuffle_epi8(
      wide, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000));
}

// As gemm_int_registers.cpp has it of dense panels: dots are exact, and the sums of floats are in the same
// order.
template <int Bits, int Rows, int Panels>
PENSTOCK_EXPANDS void multiply_sparse(const PanelView& p, const IntRows& x, int64_t row,
                                      const std::byte* weights, int64_t ahead, float* sums) {
  constexpr int64_t run_bytes = sparse_run_bytes(Bits);
  // Each dot waits for the one before it in its chain.
  constexpr int chains = Rows * Panels == 1 ? 2 : 1;
  constexpr int loads = kSparseLines / kQuads<Bits>;
  f32x16 total[Panels][Rows];
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) total[i][r] = f32x16::zero();

  const int8_t* codes = x.codes(row);
  const float* x_scales = x.scales(row);
  const int32_t* starts = x.starts(row);
  const int64_t row_floats = x.row_bytes / 4;
  const std::byte* const panel = weights;
  for (int64_t g = 0; g < p.segments; ++g) {
    __m512i dots[chains][Panels][Rows], zero[Panels];
    for (int i = 0; i < Panels; ++i) {
      const std::byte* const own = panel + i * p.panel_bytes;
      zero[i] = zero_line(p, own, g);
      for (int r = 0; r < Rows; ++r) {
        dots[0][i][r] = _mm512_set1_epi32(starts[r * row_floats + g]);
        if (p.zero_points)
          dots[0][i][r] = _mm512_mullo_epi32(dots[0][i][r], i32x16::widen(p.zeros(own, g)).v);
        for (int c = 1; c < chains; ++c) dots[c][i][r] = _mm512_setzero_si512();
      }
    }
    for (int64_t at = 0; at < p.scales_at; at += run_bytes, weights += run_bytes) {
      if (ahead)
        for (int64_t line = 0; line < run_bytes; line += kLineBytes)
          for (int i = 0; i < Panels; ++i)
            __builtin_prefetch(weights + ahead + i * p.panel_bytes + line);
#pragma GCC unroll 8
      for (int l = 0; l < loads; ++l, codes += 4 * kQuads<Bits>)
        for (int i = 0; i < Panels; ++i) {
          const auto lines = SparseLines<Bits>::load(weights + i * p.panel_bytes, l, zero[i]);
          for (int q = 0; q < kQuads<Bits>; ++q)
            for (int r = 0; r < Rows; ++r) {
              __m512i& dot = dots[(l * kQuads<Bits> + q) % chains][i][r];
              dot = _mm512_dpbusd_epi32(
                  dot, lines.quads[q],
                  _mm512_set1_epi32(load_quad(codes + r * x.row_bytes + 4 * q)));
            }
        }
    }
    if (ahead)
      for (int i = 0; i < Panels; ++i) __builtin_prefetch(weights + ahead + i * p.panel_bytes);
    for (int i = 0; i < Panels; ++i) {
      const f32x16 scale =
          f32x16::load(reinterpret_cast<const float*>(weights + i * p.panel_bytes));
      for (int r = 0; r < Rows; ++r) {
        i32x16 dot{dots[0][i][r]};
        for (int c = 1; c < chains; ++c) dot = dot + i32x16{dots[c][i][r]};
        total[i][r] = fma(f32x16::broadcast(x_scales[r * row_floats + g]) * scale, dot.to_float(),
                          total[i][r]);
      }
    }
    weights += kScaleBytes;
  }
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) total[i][r].store(sums + (i * Rows + r) * kPanelColumns);
}

template <int Bits, int Panels, int Rows = kSparseRows>
IntMultiply multiply_sparse_rows(int64_t rows) {
  if constexpr (Rows > 1)
    if (rows < Rows) return multiply_sparse_rows<Bits, Panels, Rows - 1>(rows);
  return multiply_sparse<Bits, Rows, Panels>;
}

template <int Bits>
PENSTOCK_EXPANDS void expand_sparse(const PanelView& p, const std::byte* panel, std::byte* to) {
  const std::byte* const first = panel;
  for (int64_t g = 0; g < p.segments; ++g) {
    const __m512i zero = zero_line(p, first, g);
    for (int64_t at = 0; at < p.scales_at; at += sparse_run_bytes(Bits)) {
      for (int l = 0; l < kSparseLines / kQuads<Bits>; ++l, to += kLineBytes) {
        __builtin_prefetch(panel + (4 << 10) + l * kSparseCodes);
        const auto lines = SparseLines<Bits>::load(panel, l, zero);
        if constexpr (Bits == 8) {
          _mm512_store_si512(to, lines.quads[0]);
        } else {
          _mm512_store_si512(
              to, _mm512_or_si512(lines.quads[0], _mm512_slli_epi16(lines.quads[1], 4)));
        }
      }
      panel += sparse_run_bytes(Bits);
    }
    std::memcpy(to, panel, kScaleBytes);
    panel += kScaleBytes, to += kScaleBytes;
  }
  std::memcpy(to, panel, size_t(p.panel_bytes - p.shifts_at));
}

#undef PENSTOCK_EXPANDS_INLINE
#undef PENSTOCK_EXPANDS

}  // namespace

void expand_sparse_panel(const PanelView& p, const std::byte* panel, std::byte* to) {
  return p.bits == 8 ? expand_sparse<8>(p, panel, to) : expand_sparse<4>(p, panel, to);
}

IntMultiply int_sparse_multiply(int bits, int64_t rows, int panels) {
  if (bits == 8)
    return panels == 1 ? multiply_sparse_rows<8, 1>(rows) : multiply_sparse_rows<8, 2>(rows);
  return panels == 1 ? multiply_sparse_rows<4, 1>(rows) : multiply_sparse_rows<4, 2>(rows);
}

#else

bool expands_sparse() { return false; }
void expand_sparse_panel(const PanelView&, const std::byte*, std::byte*) {}
IntMultiply int_sparse_multiply(int, int64_t, int) { return nullptr; }

#endif

}  // namespace penstock
