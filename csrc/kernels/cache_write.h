// How tokens' rows of a head go into the cache, by the cache's element.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "float8.h"
#include "head_rows.h"
#include "place_rows.h"
#include "turn_head.h"

namespace penstock {

// Codes of x, in [least, most], and their scale, max|x| / steps in bf16: codes are of the scale as it
// is kept, so rounding it costs half a percent of a step of int8. A row of zeros has
// scale 0; one with a value that is not finite has scale NaN; either has codes 0.
struct CodeRange {
  float steps, least, most;
};
constexpr CodeRange kInt8{127.0f, -127.0f, 127.0f};
constexpr CodeRange kInt4{8.0f, -8.0f, 7.0f};

// The scale of x, max|x| / steps: NaN where a value is not finite.
inline bf16 head_scale(const float* x, int n, float steps) {
  const f32x16 zero = f32x16::zero();
  f32x16 most = zero, bad = zero;
  for_lanes(n, [&](int i, int count) {
    const f32x16 v = f32x16::load_n(x + i, count);
    most = max(abs(v), most);
    bad = fma(v, zero, bad);
  });
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return to_bf16(hsum(bad) == 0.0f ? hmax(most) / steps : nan);
}

inline bf16 quantize_head(const float* x, int n, int8_t* codes, const CodeRange& range = kInt8) {
  const bf16 kept = head_scale(x, n, range.steps);
  const float scale = to_f32(kept);
  if (!(scale > 0.0f)) {
    std::fill_n(codes, n, int8_t(0));
    return kept;
  }
  alignas(64) float rounded[kMostLatentDim];
  const f32x16 divisor = f32x16::broadcast(scale);
  const f32x16 low = f32x16::broadcast(range.least), high = f32x16::broadcast(range.most);
  for_lanes(n, [&](int i, int count) {
    const f32x16 v = f32x16::load_n(x + i, count) / divisor;
    round_even(max(min(v, high), low)).store(rounded + i);
  });
  for (int i = 0; i < n; ++i) codes[i] = int8_t(rounded[i]);
  return kept;
}

// Rows of `count` tokens of a head, x [count][stride] with n components each, into tiles of keys and of values from the
// token `offset` of the block on: at most kRunTokens, of one run. Each is for the elements T.
template <class T>
struct TileWriter {  // f32, f16: nothing is interleaved
  KvTile tile;

  void keys(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) T rows[kRunTokens * kMostHeadDim];
    round(x, stride, count, rows);
    if constexpr (sizeof(T) == 4)
      place_columns(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(rows),
                    tile.head_dim, offset, count);
    else
      place_columns(reinterpret_cast<uint16_t*>(to), reinterpret_cast<const uint16_t*>(rows),
                    tile.head_dim, offset, count);
  }
  void values(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    round(x, stride, count, reinterpret_cast<T*>(to) + int64_t(offset) * tile.head_dim);
  }

 private:
  void round(const float* x, int64_t stride, int count, T* rows) const {
    for (int r = 0; r < count; ++r)
      store_row(rows + int64_t(r) * tile.head_dim, x + r * stride, tile.head_dim);
  }
};

template <>
struct TileWriter<bf16> {
  KvTile tile;

  void keys(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) bf16 rows[kRunTokens * kMostHeadDim];
    round(x, stride, count, rows);
    place_columns(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(rows),
                  tile.head_dim / 2, offset, count);
  }
  void values(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) bf16 rows[kRunTokens * kMostHeadDim];
    round(x, stride, count, rows);
    place_groups<2>(reinterpret_cast<uint16_t*>(to), reinterpret_cast<const uint16_t*>(rows),
                    tile.head_dim, tile.head_dim, offset, count);
  }

 private:
  void round(const float* x, int64_t stride, int count, bf16* rows) const {
    for (int r = 0; r < count; ++r)
      store_row(rows + int64_t(r) * tile.head_dim, x + r * stride, tile.head_dim);
  }
};

// A code in each byte.
struct Bytes {
  static constexpr bool kTurnsValues = false;
  static bf16 quantize(const float* x, int n, int8_t* codes) { return quantize_head(x, n, codes); }
  static int stored(int n) { return n; }
};

// Two codes in each byte.
struct Nibbles {
  static constexpr bool kTurnsValues = true;
  static bf16 quantize(const float* x, int n, int8_t* codes) {
    alignas(64) int8_t whole[kMostHeadDim];
    const bf16 scale = quantize_head(x, n, whole, kInt4);
    for (int d = 0; d < n / 2; ++d)
      codes[d] = int8_t((whole[d] & 15) | (uint8_t(whole[d + n / 2]) << 4));
    return scale;
  }
  static int stored(int n) { return n / 2; }
};

// Keys are turned before they are rounded.
template <class Codes>
struct CodeWriter {
  KvTile tile;

  void keys(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) int8_t rows[kRunTokens * kMostHeadDim];
    quantize<true>(to, x, stride, offset, count, rows);
    place_columns(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(rows),
                  tile.padded_dim() / 4, offset, count);
  }
  void values(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) int8_t rows[kRunTokens * kMostHeadDim];
    quantize<Codes::kTurnsValues>(to, x, stride, offset, count, rows);
    place_groups<4>(reinterpret_cast<int8_t*>(to), rows, tile.padded_dim(),
                    Codes::stored(tile.head_dim), offset, count);
  }

 private:
  template <bool kTurns>
  void quantize(std::byte* to, const float* x, int64_t stride, int offset, int count,
                int8_t* rows) const {
    const int dim = tile.head_dim, padded = tile.padded_dim();
    bf16* const scales = reinterpret_cast<bf16*>(to + tile.element_bytes()) + offset;
    for (int r = 0; r < count; ++r, x += stride, rows += padded) {
      alignas(64) float head[kMostHeadDim];
      if (kTurns) {
        std::copy_n(x, dim, head);
        turn_head(head, dim);
      }
      scales[r] = Codes::quantize(kTurns ? head : x, dim, rows);
      std::fill(rows + Codes::stored(dim), rows + padded, int8_t(0));
    }
  }
};

// Floats of 8 bits, in the order of bfloat16.
struct Float8 {};

template <>
struct TileWriter<Float8> {
  KvTile tile;

  void keys(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) uint8_t rows[kRunTokens * kMostHeadDim];
    round(to, x, stride, offset, count, rows);
    place_columns(reinterpret_cast<uint16_t*>(to), reinterpret_cast<const uint16_t*>(rows),
                  tile.head_dim / 2, offset, count);
  }
  void values(std::byte* to, const float* x, int64_t stride, int offset, int count) const {
    alignas(64) uint8_t rows[kRunTokens * kMostHeadDim];
    round(to, x, stride, offset, count, rows);
    place_groups<2>(reinterpret_cast<uint8_t*>(to), rows, tile.head_dim, tile.head_dim, offset, count);
  }

 private:
  // x over its scale, and that behind the tile.
  void round(std::byte* to, const float* x, int64_t stride, int offset, int count,
             uint8_t* rows) const {
    const int dim = tile.head_dim;
    bf16* const scales = reinterpret_cast<bf16*>(to + tile.element_bytes()) + offset;
    for (int r = 0; r < count; ++r, x += stride, rows += dim) {
      scales[r] = head_scale(x, dim, kMostFloat8);
      const float scale = to_f32(scales[r]);
      const bool usable = scale > 0.0f;
      for (int d = 0; d < dim; ++d)
        rows[d] = usable ? to_float8(std::clamp(x[d] / scale, -kMostFloat8, kMostFloat8)) : 0;
    }
  }
};

template <>
struct TileWriter<int8_t> : CodeWriter<Bytes> {};
template <>
struct TileWriter<Nibbles> : CodeWriter<Nibbles> {};

// Writes runs of tokens, x [run.count][stride], to heads of a cache whose keys are Keys, and its values Values.
template <class Keys, class Values>
class CacheWriter {
 public:
  explicit CacheWriter(const KvLayer& kv)
      : kv_(kv), keys_{kv.key_tile()}, values_{kv.value_tile()} {}

  void keys(const TokenRun& run, int head, const float* x, int64_t stride) const {
    std::byte* const to = kv_.keys(run.block, head);
    if (!kv_.key_columns) return keys_.keys(to, x, stride, run.offset, run.count);
    const int dim = kv_.head_dim;
    alignas(64) float scaled[kRunTokens * kMostHeadDim];
    const float *centers = kv_.key_centers(head), *factors = kv_.key_factors(head);
    for (int r = 0; r < run.count; ++r)
      for_lanes(dim, [&](int i, int n) {
        const f32x16 v = f32x16::load_n(x + r * stride + i, n) - f32x16::load_n(centers + i, n);
        (v / f32x16::load_n(factors + i, n)).store_n(scaled + r * dim + i, n);
      });
    keys_.keys(to, scaled, dim, run.offset, run.count);
  }
  void values(const TokenRun& run, int head, const float* x, int64_t stride) const {
    values_.values(kv_.values(run.block, head), x, stride, run.offset, run.count);
  }

 private:
  const KvLayer& kv_;
  TileWriter<Keys> keys_;
  TileWriter<Values> values_;
};

// A token's row of a cache of latents.
template <class T>
inline void write_latent(const KvLayer& kv, const float* x, int64_t block, int offset) {
  const int padded = kv.key_tile().padded_dim();
  std::byte* const tile = kv.keys(block, 0);
  T* const row = reinterpret_cast<T*>(tile) + int64_t(offset) * padded;
  if constexpr (std::is_same_v<T, int8_t>) {
    auto* const scales = reinterpret_cast<bf16*>(tile + kv.key_tile().element_bytes());
    const int rest = kv.head_dim - kv.value_dim;
    scales[offset] = quantize_head(x, kv.value_dim, row);
    scales[kBlockSize + offset] = quantize_head(x + kv.value_dim, rest, row + kv.value_dim);
  } else {
    store_row(row, x, kv.head_dim);
  }
  std::fill(row + kv.head_dim, row + padded, T{});
}

// f.operator()<Keys, Values>() for the elements of the cache's keys and values.
template <class F>
PENSTOCK_INLINE void with_cache_element(Elem elem, F f) {
  switch (elem) {
    case Elem::bf16: return f.template operator()<bf16, bf16>();
    case Elem::f16: return f.template operator()<f16, f16>();
    case Elem::i8: return f.template operator()<int8_t, int8_t>();
    case Elem::i4: return f.template operator()<Nibbles, Nibbles>();
    case Elem::e4m3: return f.template operator()<Float8, Float8>();
    case Elem::k8v4: return f.template operator()<int8_t, Nibbles>();
    default: return f.template operator()<float, float>();
  }
}

}  // namespace penstock
