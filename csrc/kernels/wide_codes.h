// A tile of an INT4 cache laid out as one of an INT8 cache, for the kernels of that.
#pragma once

#include <cstring>

#include "../simd.h"
#include "../types.h"

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

inline void copy_scales(const KvLayer& kv, const std::byte* from, std::byte* to) {
  std::memcpy(to + kv.widened().tile_bytes(), from + kv.tile_bytes(), kv.scale_bytes());
}

// Keys [D/8][32][4] to [D/4][32][4].
inline void widen_keys(const KvLayer& kv, const std::byte* from, std::byte* to) {
  const int bytes = int(kv.tile_bytes());
  widen_codes(from, bytes, to, to + bytes);
  copy_scales(kv, from, to);
}

// Values [8][D/2][4] to [8][D][4].
inline void widen_values(const KvLayer& kv, const std::byte* from, std::byte* to) {
  const int bytes = 4 * kv.padded_dim();  // of four tokens
  for (int i = 0; i < kBlockSize / 4; ++i)
    widen_codes(from + i * bytes, bytes, to + 2 * i * bytes, to + (2 * i + 1) * bytes);
  copy_scales(kv, from, to);
}

}  // namespace penstock
