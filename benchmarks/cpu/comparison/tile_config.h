/* Included before every C++ source of llama.cpp, where GCC compiles it.
 *
 * GCC 12's own _tile_loadconfig declares that LDTILECFG reads 8 bytes of the 64 that it reads, so
 * the optimizer drops the stores to the others, and llama.cpp's first product with AMX ends in a
 * segmentation fault. This one declares all 64. Nothing else of llama.cpp is changed.
 */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
