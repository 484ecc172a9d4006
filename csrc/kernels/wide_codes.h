// Tiles of codes of 4 bits laid out as those of 8 bits, and of floats of 8 bits as those of
// bfloat16, for the kernels of these.
#pragma once

#include <cstring>

#include "../simd.h"
#include "../types.h"
#include "float8.h"

namespace penstock {

// The low halves of n bytes, signed, to `low`, and the high halves to `high`; n a multiple of 16.
PENSTOCK_INLINE void widen_codes(const std::byte* from, int n, std::byte* low, std::byte* high) {
  const auto some = [&]<class Codes>(Codes codes, int i) {
    std::memcpy(&codes, from + i, sizeof(codes));
    const Codes first = ((codes & 15) ^ 8) - 8, second = ((codes >> 4) ^ 8) - 8;
    std::memcpy(low + i, &first, sizeof(first));
    std::memcpy(high + i, &second, sizeof(second));
  };
  typedef uint8_t Line __attribute__((vector_size(64)));
  typedef uint8_t Quarter __attribute__((vector_size(16)));
  int i = 0;
  for (; i + 64 <= n; i += 64) some(Line{}, i);
  for (; i < n; i += 16) some(Quarter{}, i);
}

inline void copy_scales(const KvTile& tile, const std::byte* from, std::byte* to) {
  std::memcpy(to + tile.widened().element_bytes(), from + tile.element_bytes(),
              tile.scale_bytes());
}

// Bytes of a tile when it is widened, the scales behind it.
inline size_t wide_bytes(const KvTile& tile) {
  return tile.widened().element_bytes() + tile.scale_bytes();
}

// Keys or values in the order of bfloat16.
inline void widen_floats(const KvTile& tile, const std::byte* from, std::byte* to) {
  widen_float8(from, int(tile.element_bytes()), to);
  copy_scales(tile, from, to);
}

// Keys [D/8][32][4] to [D/4][32][4].
inline void widen_keys(const KvTile& tile, const std::byte* from, std::byte* to) {
  const int bytes = int(tile.element_bytes());
  widen_codes(from, bytes, to, to + bytes);
  copy_scales(tile, from, to);
}

// Values [8][D/2][4] to [8][D][4].
inline void widen_values(const KvTile& tile, const std::byte* from, std::byte* to) {
  const int bytes = 4 * tile.padded_dim();  // of four tokens
  for (int i = 0; i < kBlockSize / 4; ++i)
    widen_codes(from + i * bytes, bytes, to + 2 * i * bytes, to + (2 * i + 1) * bytes);
  copy_scales(tile, from, to);
}

}  // namespace penstock
