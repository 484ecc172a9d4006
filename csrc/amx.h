// The configuration of AMX's tile registers, for every kernel that uses them.
#pragma once

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include <cstdint>

namespace penstock {

// The 64 bytes that LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void load() const {
    // GCC 12's intrinsic declares that it reads 8 of the bytes; the stores of the others may be
    // left out without this. Seen: a crash in LDTILECFG.
    asm volatile("" : : "r"(this) : "memory");
    _tile_loadconfig(this);
  }
};

}  // namespace penstock

#endif
