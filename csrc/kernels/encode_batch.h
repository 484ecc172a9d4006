// What the encoders of all formats share: sixteen blocks at once, and how their codes are laid out.
#pragma once

#include <cstdint>
#include <cstring>

#include "encode_fit.h"
#include "gemm_block.h"

namespace penstock {

constexpr int kSuper = 256;  // columns of a block of a k-quant
constexpr int kSmall = 32;   // of another

// Sixteen blocks, a column behind the other, and what is made of them, block by block.
template <int kColumns>
struct Batch {
  alignas(64) LaneRow x[kColumns];
  alignas(64) LaneRow weights[kColumns];
  bool weighted;
  alignas(64) uint8_t codes[kEncodeLanes][kColumns];

  // Lanes without a block are zeros.
  void load(const float* values, int64_t first, int count, const float* importance,
            int64_t per_row) {
    weighted = importance != nullptr;
    if (count < kEncodeLanes) std::memset(x, 0, sizeof x);
    for (int lane = 0; lane < count; ++lane) {
      const float* from = values + (first + lane) * kColumns;
      for (int i = 0; i < kColumns; ++i) x[i][lane] = from[i];
    }
    if (!weighted) return;
    for (int lane = 0; lane < kEncodeLanes; ++lane) {
      const float* from = importance + (first + lane) % per_row * kColumns;
      for (int i = 0; i < kColumns; ++i) weights[i][lane] = from[i];
    }
  }

  PENSTOCK_INLINE void keep(int column, f32x16 code) {
    alignas(64) LaneRow row;
    code.store(row);
    for (int lane = 0; lane < kEncodeLanes; ++lane) codes[lane][column] = uint8_t(int(row[lane]));
  }
};

inline void put_half(uint8_t* to, float x) {
  const f16 rounded = to_f16(x);
  std::memcpy(to, &rounded, sizeof rounded);
}

// Codes of `width` bits, those of `together` columns in the same bits of as many bytes.
inline uint8_t* put_planes(uint8_t* to, const uint8_t* codes, int columns, int together, int width,
                    int shift) {
  const int parts = 8 / width, mask = (1 << width) - 1;
  for (int run = 0; run < columns; run += parts * together)
    for (int i = 0; i < together; ++i) {
      int packed = 0;
      for (int part = 0; part < parts; ++part)
        packed |= (codes[run + part * together + i] >> shift & mask) << part * width;
      *to++ = uint8_t(packed);
    }
  return to;
}

PENSTOCK_INLINE f32x16 code_with_offset(f32x16 x, f32x16 minimum, f32x16 per_step, float top) {
  return round_and_clip((x + minimum) * per_step, 0.0f, top);
}

PENSTOCK_INLINE f32x16 code_around(f32x16 x, f32x16 per_step, float middle) {
  return round_and_clip(x * per_step, -middle, middle - 1);
}

template <int kColumns>
using Encode = void (*)(Batch<kColumns>&, int count, uint8_t* out);

}  // namespace penstock
