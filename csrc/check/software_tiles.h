// AMX's tiles in plain code, so that kernels for them can be checked on machines with AVX-512 and
// bfloat16 that have none (docs/development.md): included before everything else, by the compiler's
// -include. Products of bfloat16 are added in the order that Intel's manual gives, pairs' first and
// second apart, and rounded each.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#if !defined(__AMX_TILE__)
#error "compile with -mamx-tile -mamx-int8 -mamx-bf16"
#endif

#define PENSTOCK_SOFTWARE_TILES

namespace penstock::software_tiles {

struct Tiles {
  uint16_t row_bytes[8];
  uint8_t rows[8];
  uint8_t data[8][16][64];
};
inline thread_local Tiles tiles;

inline void load_config(const void* config) {
  const uint8_t* const from = static_cast<const uint8_t*>(config);
  for (int t = 0; t < 8; ++t) {
    std::memcpy(&tiles.row_bytes[t], from + 16 + 2 * t, 2);
    tiles.rows[t] = from[48 + t];
  }
  std::memset(tiles.data, 0, sizeof(tiles.data));
}
inline void release() { tiles = {}; }
inline void zero(int t) { std::memset(tiles.data[t], 0, sizeof(tiles.data[t])); }
inline void load(int t, const void* from, int64_t stride) {
  zero(t);
  for (int r = 0; r < tiles.rows[t]; ++r)
    std::memcpy(tiles.data[t][r], static_cast<const char*>(from) + r * stride, tiles.row_bytes[t]);
}
inline void store(int t, void* to, int64_t stride) {
  for (int r = 0; r < tiles.rows[t]; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tiles.data[t][r], tiles.row_bytes[t]);
}

inline float widened(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline void add_pairs(int sum, int x, int w) {
  for (int r = 0; r < tiles.rows[sum]; ++r)
    for (int c = 0; c < tiles.row_bytes[sum] / 4; ++c) {
      float parts[2] = {0, 0}, before;
      for (int k = 0; k < tiles.row_bytes[x] / 4; ++k)
        for (int i = 0; i < 2; ++i)
          parts[i] = std::fma(widened(&tiles.data[x][r][4 * k + 2 * i]),
                              widened(&tiles.data[w][k][4 * c + 2 * i]), parts[i]);
      std::memcpy(&before, &tiles.data[sum][r][4 * c], 4);
      before += parts[0] + parts[1];
      std::memcpy(&tiles.data[sum][r][4 * c], &before, 4);
    }
}
template <class X, class W>
void add_bytes(int sum, int x, int w) {
  for (int r = 0; r < tiles.rows[sum]; ++r)
    for (int c = 0; c < tiles.row_bytes[sum] / 4; ++c) {
      int32_t all;
      std::memcpy(&all, &tiles.data[sum][r][4 * c], 4);
      for (int k = 0; k < tiles.row_bytes[x] / 4; ++k)
        for (int i = 0; i < 4; ++i)
          all += int32_t(X(tiles.data[x][r][4 * k + i])) * int32_t(W(tiles.data[w][k][4 * c + i]));
      std::memcpy(&tiles.data[sum][r][4 * c], &all, 4);
    }
}

}  // namespace penstock::software_tiles

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig(config) ::penstock::software_tiles::load_config(config)
#define _tile_release() ::penstock::software_tiles::release()
#define _tile_zero(t) ::penstock::software_tiles::zero(t)
#define _tile_loadd(t, from, stride) ::penstock::software_tiles::load(t, from, stride)
#define _tile_stream_loadd(t, from, stride) ::penstock::software_tiles::load(t, from, stride)
#define _tile_stored(t, to, stride) ::penstock::software_tiles::store(t, to, stride)
#define _tile_dpbf16ps(sum, x, w) ::penstock::software_tiles::add_pairs(sum, x, w)
#define _tile_dpbssd(sum, x, w) ::penstock::software_tiles::add_bytes<int8_t, int8_t>(sum, x, w)
#define _tile_dpbsud(sum, x, w) ::penstock::software_tiles::add_bytes<int8_t, uint8_t>(sum, x, w)
#define _tile_dpbusd(sum, x, w) ::penstock::software_tiles::add_bytes<uint8_t, int8_t>(sum, x, w)
#define _tile_dpbuud(sum, x, w) ::penstock::software_tiles::add_bytes<uint8_t, uint8_t>(sum, x, w)
