// From codes to points, a run of a panel at a time, for tiles.
#pragma once

#include <array>

#include "gemm_epilogue.h"
#include "gemm_int_blocks.h"
#include "gemm_int_simd.h"
#include "gemm_panels.h"

namespace penstock {

// k of a run, what is expanded at once: a group and a tile's depth are whole runs, and a run is whole
// windows.
constexpr int64_t kPointRun = 32;
static_assert(kPointRun % kGridGroup == 0);

// Points of 16 columns are step * code + shift, exact in float32.
struct PointLine {
  f32x16 step, shift;

  template <int Bits, PointKind Kind>
  static PENSTOCK_INLINE PointLine load(const std::byte* shifts) {
    const f32x16 one = f32x16::broadcast(1.0f), none = f32x16::zero();
    if constexpr (Kind == PointKind::offset)
      return {one, f32x16::broadcast(float(-code_offset(Bits)))};
    const f32x16 stored = i32x16::widen(shifts).to_float();
    if constexpr (Kind == PointKind::zeros) return {one, none - stored};
    // step - 1 + 16 * origin
    const f32x16 origin = round_even(fma(stored, f32x16::broadcast(0.0625f),
                                         f32x16::broadcast(-0.46875f)));
    const f32x16 step = fma(origin, f32x16::broadcast(-16.0f), stored) + one;
    return {step, none - step * origin};
  }
};

#if defined(__AVX512BF16__)

// To bfloat16, [k/2][16][2]: operands of VDPBF16PS and, 16 rows at a time, of an AMX tile. Of each
// four k the pairs are the first and third, the second and fourth, as 16-bit lanes of codes have
// them; so x's inner two must change places.
struct PairPoints {
  static constexpr int64_t kBytes = kPanelColumns * 2;  // of one k

  template <int Bits, PointKind Kind>
  static PENSTOCK_INLINE void expand(const std::byte* codes, const std::byte* shifts,
                                     std::byte* to) {
    constexpr int lines = int(kPointRun) * Bits / 32;
    if constexpr (Bits == 8) {
      const PointLine line = PointLine::load<Bits, Kind>(shifts);
      for (int i = 0; i < lines; ++i, codes += kLineBytes, to += 2 * kLineBytes)
        bytes(_mm512_load_si512(codes), line.shift.v, to);
    } else if constexpr (Kind == PointKind::windows) {
      constexpr int of_window = int(kGridGroup) * Bits / 32;
      for (int i = 0; i < lines; i += of_window, shifts += kPanelColumns) {
        const PointLine line = PointLine::load<Bits, Kind>(shifts);
        for (int j = 0; j < of_window; ++j, codes += kLineBytes, to += 4 * kLineBytes)
          windows(_mm512_load_si512(codes), line, to);
      }
    } else {
      const __m512i zero = Kind == PointKind::zeros ? spread(shifts) : __m512i();
      for (int i = 0; i < lines; ++i, codes += kLineBytes, to += 4 * kLineBytes)
        nibbles<Kind>(_mm512_load_si512(codes), zero, to);
    }
  }

 private:
  // Two vectors of floats whose lower halves are zero: the first in the low halves.
  static PENSTOCK_INLINE __m512i join(__m512 low, __m512 high) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                           _mm512_castps_si512(high));
  }

  // 2^23 with a byte as its last bits is 2^23 + the byte.
  static PENSTOCK_INLINE void bytes(__m512i row, __m512 shift, std::byte* to) {
    const __m512i mask = _mm512_set1_epi32(255), magic = _mm512_set1_epi32(0x4b000000);
    const __m512 less = _mm512_sub_ps(shift, _mm512_set1_ps(0x1p23f));  // exact
    const auto point = [&](__m512i at) __attribute__((always_inline)) {
      return _mm512_add_ps(
          _mm512_castsi512_ps(_mm512_ternarylogic_epi32(at, mask, magic, 0xea)), less);
    };
    const __m512 first = point(row), second = point(_mm512_srli_epi32(row, 8));
    const __m512 third = point(_mm512_srli_epi32(row, 16));
    const __m512 fourth = point(_mm512_srli_epi32(row, 24));
    _mm512_store_si512(to, join(first, third));
    _mm512_store_si512(to + kLineBytes, join(second, fourth));
  }

  static PENSTOCK_INLINE void windows(__m512i row, const PointLine& line, std::byte* to) {
    const __m512 table = f32x16::iota().v;
    const auto point = [&](int bit) __attribute__((always_inline)) {
      const __m512 code = _mm512_permutexvar_ps(_mm512_srli_epi32(row, unsigned(bit)), table);
      return _mm512_fmadd_ps(code, line.step.v, line.shift.v);
    };
    _mm512_store_si512(to, join(point(0), point(16)));
    _mm512_store_si512(to + kLineBytes, join(point(8), point(24)));
    _mm512_store_si512(to + 2 * kLineBytes, join(point(4), point(20)));
    _mm512_store_si512(to + 3 * kLineBytes, join(point(12), point(28)));
  }

  // Each of 16 bytes in both 16-bit lanes of its column.
  static PENSTOCK_INLINE __m512i spread(const std::byte* from) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
  }

  // 0 to 15 and, as five bits that are negative, -16 to -1; or twice -8 to 7, by the code.
  template <PointKind Kind>
  static constexpr std::array<uint16_t, 32> points() {
    std::array<uint16_t, 32> all{};
    for (int i = 0; i < 32; ++i) {
      const int point = Kind == PointKind::zeros ? (i < 16 ? i : i - 32) : i % 16 - 8;
      all[size_t(i)] = uint16_t(std::bit_cast<uint32_t>(float(point)) >> 16);
    }
    return all;
  }

  // A 16-bit lane has nibbles of k 0, 4, 1, 5, or of 2, 6, 3, 7; VPERMW reads its lowest five bits.
  template <PointKind Kind>
  static PENSTOCK_INLINE void nibbles(__m512i row, __m512i zero, std::byte* to) {
    alignas(64) static constexpr std::array<uint16_t, 32> kPoints = points<Kind>();
    const __m512i table = _mm512_load_si512(kPoints.data());
    const auto pairs = [&](__m512i code) __attribute__((always_inline)) {
      if constexpr (Kind == PointKind::zeros)
        code = _mm512_sub_epi16(_mm512_and_si512(code, _mm512_set1_epi16(15)), zero);
      return _mm512_permutexvar_epi16(code, table);
    };
    _mm512_store_si512(to, pairs(row));
    _mm512_store_si512(to + kLineBytes, pairs(_mm512_srli_epi16(row, 8)));
    _mm512_store_si512(to + 2 * kLineBytes, pairs(_mm512_srli_epi16(row, 4)));
    _mm512_store_si512(to + 3 * kLineBytes, pairs(_mm512_srli_epi16(row, 12)));
  }
};

#endif

// Kinds of panels, and functions chosen for one: of a panel's run from k on.
template <class Points>
struct Expand {
  using Run = void (*)(const PanelView&, const std::byte* panel, int64_t k, std::byte* to);
  using Fetch = void (*)(const PanelView&, const std::byte* panel, int64_t k);

  Run run;
  Fetch fetch;  // its codes and what belongs to them, into L2

  explicit Expand(const PanelView& p) {
    const bool bytes = p.bits == 8;
    if (p.windows) choose<4, PointKind::windows>();
    else if (p.zero_points)
      bytes ? choose<8, PointKind::zeros>() : choose<4, PointKind::zeros>();
    else
      bytes ? choose<8, PointKind::offset>() : choose<4, PointKind::offset>();
  }

  // What the sums of all k of a panel become, where the row has one scale.
  RowScaledSums scaled(const PanelView& p, const std::byte* panel, const float* sums,
                       int64_t part) const {
    const float* const own = reinterpret_cast<const float*>(panel + p.scales(0));
    return {sums, part, own, p.panel_bytes / int64_t(sizeof(float))};
  }

 private:
  template <int Bits, PointKind Kind>
  void choose() {
    run = [](const PanelView& p, const std::byte* panel, int64_t k, std::byte* to) {
      Points::template expand<Bits, Kind>(panel + p.codes_at(k), panel + p.shifts(Kind, k), to);
    };
    fetch = [](const PanelView& p, const std::byte* panel, int64_t k) {
      const std::byte* const codes = panel + p.codes_at(k);
      for (int64_t line = 0; line < kPointRun * kPanelColumns * Bits / 8; line += kLineBytes)
        __builtin_prefetch(codes + line, 0, 2);
      if (Kind != PointKind::offset) __builtin_prefetch(panel + p.shifts(Kind, k), 0, 2);
      if (p.scaled) __builtin_prefetch(panel + p.scales(k), 0, 2);
    };
  }
};

}  // namespace penstock
