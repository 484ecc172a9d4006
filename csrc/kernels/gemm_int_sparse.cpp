// Products with sparse panels of integers.
#include "gemm_int_sparse.h"

#include <cstring>

#include "gemm_int_kernel.h"

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

namespace {

// What a line's codes that are not held are: those of each column in its four bytes.
using LeftOut = __m512i;

PENSTOCK_INLINE LeftOut left_out(const PanelView& p, const std::byte* panel, int64_t g) {
  if (!p.zero_points) return _mm512_set1_epi8(char(code_offset(p.bits)));
  const __m512i wide = i32x16::widen(p.zeros(panel, g)).v;
  return _mm512_shuffle_epi8(
      wide, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000));
}

// The instruction (VBMI2) by its name, since this is compiled for machines without it, too: of the CPUs with
// AVX512-BF16, which this code needs, Cooper Lake alone lacks it.
PENSTOCK_INLINE __m512i expanded_line(LeftOut zero, const std::byte* mask, __m256i held) {
  uint64_t bits;
  std::memcpy(&bits, mask, sizeof(bits));
  asm("vpexpandb %1, %0%{%2%}"
      : "+v"(zero)
      : "v"(_mm512_castsi256_si512(held)), "Yk"(_cvtu64_mask64(bits)));
  return zero;
}

template <int Bits>
PENSTOCK_INLINE Line<Bits> expanded_lines(const std::byte* mask, const std::byte* held, LeftOut zero) {
  const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(held));
  if constexpr (Bits == 8) {
    return {{expanded_line(zero, mask, codes)}};
  } else {
    const __m256i low = _mm256_set1_epi8(15);
    return {{expanded_line(zero, mask, _mm256_and_si256(codes, low)),
             expanded_line(zero, mask + 8,
                           _mm256_and_si256(_mm256_srli_epi16(codes, 4), low))}};
  }
}

// As a dense panel has them.
template <int Bits>
PENSTOCK_INLINE void store_line(const Line<Bits>& line, std::byte* to) {
  if constexpr (Bits == 8) _mm512_store_si512(to, line.quads[0]);
  else _mm512_store_si512(to, _mm512_or_si512(line.quads[0], _mm512_slli_epi16(line.quads[1], 4)));
}

// Lines of a run: one of 8 bits, or the two that share 32 bytes.
template <int Bits>
struct SparseSource {
  static constexpr int kBits = Bits, kLoads = kSparseLines / kQuads<Bits>;
  static constexpr int64_t kRunBytes = sparse_run_bytes(Bits);
  using Zero = LeftOut;
  static PENSTOCK_INLINE Zero zero(const PanelView& p, const std::byte* panel, int64_t g) {
    return left_out(p, panel, g);
  }
  static PENSTOCK_INLINE Line<Bits> load(const std::byte* run, int i, const Zero& zero) {
    return expanded_lines<Bits>(run + i * kQuads<Bits> * 8,
                                run + kSparseMaskBytes + i * kSparseCodes, zero);
  }
};

template <class Source>
void expand_sparse(const PanelView& p, const std::byte* panel, std::byte* to) {
  const std::byte* const first = panel;
  for (int64_t g = 0; g < p.segments; ++g) {
    const auto zero = Source::zero(p, first, g);
    for (int64_t at = 0; at < p.scales_at; at += Source::kRunBytes, panel += Source::kRunBytes)
      for (int l = 0; l < Source::kLoads; ++l, to += kLineBytes) {
        __builtin_prefetch(panel + (4 << 10) + l * kSparseCodes);
        store_line<Source::kBits>(Source::load(panel, l, zero), to);
      }
    std::memcpy(to, panel, kScaleBytes);
    panel += kScaleBytes, to += kScaleBytes;
  }
  std::memcpy(to, panel, size_t(p.panel_bytes - p.shifts_at));
}

}  // namespace

bool expands_sparse() { return __builtin_cpu_supports("avx512vbmi2"); }

void expand_sparse_panel(const PanelView& p, const std::byte* panel, std::byte* to) {
  p.bits == 8 ? expand_sparse<SparseSource<8>>(p, panel, to)
              : expand_sparse<SparseSource<4>>(p, panel, to);
}

IntMultiply int_sparse_multiply(const PanelView& p, int64_t rows, int panels) {
  return p.bits == 8 ? multiply_int_panels<SparseSource<8>>(rows, panels)
                     : multiply_int_panels<SparseSource<4>>(rows, panels);
}

#else

bool expands_sparse() { return false; }
void expand_sparse_panel(const PanelView&, const std::byte*, std::byte*) {}
IntMultiply int_sparse_multiply(const PanelView&, int64_t, int) { return nullptr; }

#endif

}  // namespace penstock
