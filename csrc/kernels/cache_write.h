// How a token's row of a head goes into the cache, by the cache's element.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "float8.h"
#include "head_rows.h"
#include "turn_head.h"

namespace penstock {

// Both write single elements between those of other tokens, which other threads may be writing:
// only whole-element stores, never a read-modify-write of a neighbour.
template <class T>
inline void store_key(T* tile, const float* x, int n, int offset) {
  for (int d = 0; d < n; ++d) tile[d * kBlockSize + offset] = from_f32<T>(x[d]);
}

inline void store_key(bf16* tile, const float* x, int n, int offset) {
  bf16 row[kMostHeadDim];
  store_row(row, x, n);
  for (int d = 0; d < n; d += 2)
    std::memcpy(tile + d * kBlockSize + offset * 2, row + d, 2 * sizeof(bf16));
}

template <class T>
inline void store_value(T* tile, const float* x, int n, int offset) {
  store_row(tile + offset * n, x, n);
}

inline void store_value(bf16* tile, const float* x, int n, int offset) {
  bf16 row[kMostHeadDim];
  store_row(row, x, n);
  bf16* out = tile + (offset / 2) * 2 * n + offset % 2;
  for (int d = 0; d < n; ++d) out[2 * d] = row[d];
}

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

// Writes heads to tiles whose elements are T.
template <class T>
struct TileWriter {
  KvTile tile;

  void key(std::byte* to, const float* x, int offset) const {
    store_key(reinterpret_cast<T*>(to), x, tile.head_dim, offset);
  }
  void value(std::byte* to, const float* x, int offset) const {
    store_value(reinterpret_cast<T*>(to), x, tile.head_dim, offset);
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
    const bf16 scale = quantize_head(x, n, codes, kInt4);
    for (int d = 0; d < n / 2; ++d)
      codes[d] = int8_t((codes[d] & 15) | (uint8_t(codes[d + n / 2]) << 4));
    return scale;
  }
  static int stored(int n) { return n / 2; }
};

// Keys are turned before they are rounded.
template <class Codes>
struct CodeWriter {
  KvTile tile;

  void key(std::byte* to, const float* x, int offset) const {
    alignas(64) int8_t codes[kMostHeadDim + 4];
    store_scale(to, turned(x, codes), offset);
    const int stored = Codes::stored(tile.head_dim);
    std::fill(codes + stored, codes + tile.padded_dim(), int8_t(0));
    for (int d = 0; d < stored; d += 4)
      std::memcpy(to + d * kBlockSize + offset * 4, codes + d, 4);
  }
  void value(std::byte* to, const float* x, int offset) const {
    alignas(64) int8_t codes[kMostHeadDim];
    const int dim = tile.head_dim;
    store_scale(to, Codes::kTurnsValues ? turned(x, codes) : Codes::quantize(x, dim, codes),
                offset);
    auto* out = reinterpret_cast<int8_t*>(to) + offset / 4 * 4 * tile.padded_dim() + offset % 4;
    for (int d = 0; d < Codes::stored(dim); ++d) out[4 * d] = codes[d];
  }

 private:
  bf16 turned(const float* x, int8_t* codes) const {
    alignas(64) float head[kMostHeadDim];
    std::copy_n(x, tile.head_dim, head);
    turn_head(head, tile.head_dim);
    return Codes::quantize(head, tile.head_dim, codes);
  }
  void store_scale(std::byte* to, bf16 scale, int offset) const {
    reinterpret_cast<bf16*>(to + tile.element_bytes())[offset] = scale;
  }
};

// Floats of 8 bits, in the order of bfloat16.
struct Float8 {};

template <>
struct TileWriter<Float8> {
  KvTile tile;

  void key(std::byte* to, const float* x, int offset) const {
    uint8_t row[kMostHeadDim];
    round(x, row, to, offset);
    for (int d = 0; d < tile.head_dim; d += 2)
      std::memcpy(to + d * kBlockSize + offset * 2, row + d, 2);
  }
  void value(std::byte* to, const float* x, int offset) const {
    uint8_t row[kMostHeadDim];
    round(x, row, to, offset);
    auto* out = reinterpret_cast<uint8_t*>(to) + offset / 2 * 2 * tile.head_dim + offset % 2;
    for (int d = 0; d < tile.head_dim; ++d) out[2 * d] = row[d];
  }

 private:
  // x over its scale, and that behind the tile.
  void round(const float* x, uint8_t* row, std::byte* to, int offset) const {
    const bf16 kept = head_scale(x, tile.head_dim, kMostFloat8);
    reinterpret_cast<bf16*>(to + tile.element_bytes())[offset] = kept;
    const float scale = to_f32(kept);
    const bool usable = scale > 0.0f;
    for (int d = 0; d < tile.head_dim; ++d)
      row[d] = usable ? to_float8(std::clamp(x[d] / scale, -kMostFloat8, kMostFloat8)) : 0;
  }
};

template <>
struct TileWriter<int8_t> : CodeWriter<Bytes> {};
template <>
struct TileWriter<Nibbles> : CodeWriter<Nibbles> {};

// Writes heads of a cache whose keys are Keys, and its values Values.
template <class Keys, class Values>
class CacheWriter {
 public:
  explicit CacheWriter(const KvLayer& kv)
      : kv_(kv), keys_{kv.key_tile()}, values_{kv.value_tile()} {}

  void key(int64_t block, int head, const float* x, int offset) const {
    alignas(64) float scaled[kMostHeadDim];
    if (kv_.key_columns) {
      const float *centers = kv_.key_centers(head), *factors = kv_.key_factors(head);
      for_lanes(kv_.head_dim, [&](int i, int n) {
        const f32x16 v = f32x16::load_n(x + i, n) - f32x16::load_n(centers + i, n);
        (v / f32x16::load_n(factors + i, n)).store_n(scaled + i, n);
      });
      x = scaled;
    }
    keys_.key(kv_.keys(block, head), x, offset);
  }
  void value(int64_t block, int head, const float* x, int offset) const {
    values_.value(kv_.values(block, head), x, offset);
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
