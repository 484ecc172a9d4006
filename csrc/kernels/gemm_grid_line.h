// A step of a panel as lines of the 8-bit grid, plus 128, and dots with them, for each
// instruction set.
#pragma once

#include "gemm_grid_blocks.h"
#include "gemm_int_simd.h"

namespace penstock {

// The steps and origins of a group's 16 columns, ready for expand().
//
// A pair of nibbles in a 16-bit lane is multiplied by the column's step at once: a product is at
// most 15 * 16, so none carries into its neighbour.
#if defined(__AVX512VNNI__)

struct Window {
  __m512i step;  // in each 16-bit lane
  __m512i base;  // 128 - step * origin, in each byte

  static PENSTOCK_INLINE Window load(const std::byte* from) {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i all = _mm512_broadcast_i32x4(_mm_load_si128(
        reinterpret_cast<const __m128i*>(from)));
    // Lane q of the register holds columns 4q..4q+3: byte 4q + i to 16-bit lanes 2i and 2i + 1.
    const __m512i place = _mm512_set_epi32(
        0x800f800f, 0x800e800e, 0x800d800d, 0x800c800c, 0x800b800b, 0x800a800a, 0x80098009,
        0x80088008, 0x80078007, 0x80068006, 0x80058005, 0x80048004, 0x80038003, 0x80028002,
        0x80018001, 0x80008000);
    const __m512i both = _mm512_shuffle_epi8(all, place);
    const __m512i step = _mm512_add_epi16(_mm512_and_si512(both, low), _mm512_set1_epi16(1));
    const __m512i product = _mm512_mullo_epi16(step, _mm512_srli_epi16(both, 4));
    const __m512i base = _mm512_sub_epi16(_mm512_set1_epi16(128), product);
    // To both bytes of each lane.
    const __m512i copy = _mm512_set4_epi32(0x0e0e0c0c, 0x0a0a0808, 0x06060404, 0x02020000);
    return {step, _mm512_shuffle_epi8(base, copy)};
  }
  // A line of codes, 8 k, as two lines of the grid.
  PENSTOCK_INLINE void expand(const std::byte* from, Line<8>& first, Line<8>& second) const {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i row = _mm512_load_si512(from);
    const __m512i a = _mm512_and_si512(row, low);
    const __m512i b = _mm512_and_si512(_mm512_srli_epi16(row, 4), low);
    first.quads[0] = _mm512_add_epi8(_mm512_mullo_epi16(a, step), base);
    second.quads[0] = _mm512_add_epi8(_mm512_mullo_epi16(b, step), base);
  }
  PENSTOCK_INLINE void expand(const std::byte* from, std::byte* to) const {
    Line<8> first, second;
    expand(from, first, second);
    _mm512_store_si512(to, first.quads[0]);
    _mm512_store_si512(to + kLineBytes, second.quads[0]);
  }
};

#elif defined(__AVX2__)

struct Window {
  __m256i step[2], base[2];  // columns 0-7 and 8-15

  static PENSTOCK_INLINE Window load(const std::byte* from) {
    const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i nibble = _mm256_set1_epi32(15);
    const __m256i halves[2] = {_mm256_cvtepu8_epi32(all),
                               _mm256_cvtepu8_epi32(_mm_srli_si128(all, 8))};
    Window w;
    for (int i = 0; i < 2; ++i) {
      const __m256i step =
          _mm256_add_epi32(_mm256_and_si256(halves[i], nibble), _mm256_set1_epi32(1));
      const __m256i product = _mm256_mullo_epi16(step, _mm256_srli_epi32(halves[i], 4));
      const __m256i base = _mm256_sub_epi32(_mm256_set1_epi32(128), product);
      const __m256i copy =
          _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4,
                           4, 8, 8, 8, 8, 12, 12, 12, 12);
      w.step[i] = _mm256_or_si256(step, _mm256_slli_epi32(step, 16));
      w.base[i] = _mm256_shuffle_epi8(base, copy);
    }
    return w;
  }
  PENSTOCK_INLINE void expand(const std::byte* from, std::byte* to) const {
    const __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < 2; ++i) {
      const __m256i row = _mm256_load_si256(reinterpret_cast<const __m256i*>(from) + i);
      const __m256i a = _mm256_and_si256(row, low);
      const __m256i b = _mm256_and_si256(_mm256_srli_epi16(row, 4), low);
      __m256i* out = reinterpret_cast<__m256i*>(to) + i;
      _mm256_store_si256(out, _mm256_add_epi8(_mm256_mullo_epi16(a, step[i]), base[i]));
      _mm256_store_si256(out + 2, _mm256_add_epi8(_mm256_mullo_epi16(b, step[i]), base[i]));
    }
  }
};

#elif defined(__aarch64__)

// Bytes are multiplied as such.
struct Window {
  uint8x16_t step[4], base[4];  // in each byte of the columns of a line's registers

  static PENSTOCK_INLINE Window load(const std::byte* from) {
    const uint8x16_t both = load_bytes(from);
    const uint8x16_t steps = vaddq_u8(vandq_u8(both, vdupq_n_u8(15)), vdupq_n_u8(1));
    const uint8x16_t bases =
        vsubq_u8(vdupq_n_u8(kSignedBytes ? 0 : 128), vmulq_u8(steps, vshrq_n_u8(both, 4)));
    constexpr uint8x16_t first = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    Window w;
    for (int c = 0; c < 4; ++c) {
      const uint8x16_t columns = vaddq_u8(first, vdupq_n_u8(uint8_t(4 * c)));
      w.step[c] = vqtbl1q_u8(steps, columns);
      w.base[c] = vqtbl1q_u8(bases, columns);
    }
    return w;
  }
  PENSTOCK_INLINE void expand(const std::byte* from, Line<8>& first, Line<8>& second) const {
    const Line<4> codes = Line<4>::load(from);
    for (int c = 0; c < 4; ++c) {
      first.quads[0][c] = vmlaq_u8(base[c], codes.quads[0][c], step[c]);
      second.quads[0][c] = vmlaq_u8(base[c], codes.quads[1][c], step[c]);
    }
  }
  PENSTOCK_INLINE void expand(const std::byte* from, std::byte* to) const {
    Line<8> first, second;
    expand(from, first, second);
    first.store(to);
    second.store(to + kLineBytes);
  }
};

#else

struct Window {
  const std::byte* windows;

  static PENSTOCK_INLINE Window load(const std::byte* from) { return {from}; }
  PENSTOCK_INLINE void expand(const std::byte* from, std::byte* to) const {
    for (int i = 0; i < kLineBytes; ++i) {
      const int window = int(windows[i / 4]), step = window % 16 + 1, origin = window / 16;
      to[i] = std::byte(step * (int(from[i]) % 16 - origin) + 128);
      to[i + kLineBytes] = std::byte(step * (int(from[i]) / 16 - origin) + 128);
    }
  }
};

#endif

#if !defined(__aarch64__)

// A line of codes as two lines of the grid, which are left at `to`, too, unless it is null.
PENSTOCK_INLINE void expand_lines(const Window& window, const std::byte* from, std::byte* to,
                                  Line<8>& first, Line<8>& second) {
#if defined(__AVX512VNNI__)
  window.expand(from, first, second);
  if (!to) return;
  _mm512_store_si512(to, first.quads[0]);
  _mm512_store_si512(to + kLineBytes, second.quads[0]);
#else
  alignas(64) std::byte own[2 * kLineBytes];
  if (!to) to = own;
  window.expand(from, to);
  first = Line<8>::load(to);
  second = Line<8>::load(to + kLineBytes);
#endif
}

#endif

// One group: 2 lines of codes to 4 lines of the grid.
PENSTOCK_INLINE void expand_group(const std::byte* codes, const std::byte* windows,
                                  std::byte* to) {
  const Window window = Window::load(windows);
  for (int i = 0; i < kGridGroup / 8; ++i)
    window.expand(codes + i * kLineBytes, to + 2 * i * kLineBytes);
}

// Half a step, 32 k.
PENSTOCK_INLINE void expand_half(const std::byte* codes, const std::byte* windows, std::byte* to) {
  for (int g = 0; g < kStepGroups / 2; ++g)
    expand_group(codes + g * kGridGroup * kPanelColumns / 2, windows + g * kPanelColumns,
                 to + g * kGridGroup * kPanelColumns);
}

}  // namespace penstock
