// How products are carried out where machine and shape decide what is fastest. No result and no
// packed byte depends on any of it, so it may be changed between two calls.
//
// A parameter is one to be tuned for a kind of weights if it was worth 3 % somewhere, in processor
// time of products of Llama 3.2 1B's shapes on a Xeon with AMX; what each gained stands beside it.
// Its default is what was best there in most cases.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

struct PackedMatrix;
struct IntMatrix;
struct GridMatrix;
struct BlockMatrix;
struct CodebookMatrix;

// Each kind of matrix has defaults of its own, and heeds what it needs.
struct Tuning {
  // How far ahead a stream of weights is prefetched: defaults are below. (One row,
  // Xeon. Floats: 2 KiB 8 to 10 % faster on avx512 than 8, on amx 1 to 3 %. Groups: 2, 6 or 8 KiB 3
  // to 5 % faster than 4, which of them depends on bits and shape.) Where x stays in floats and weights do not, from
  // kAheadInL2 on into L2 instead of L1.
  int64_t stream_ahead = 0;
  // For partial sums; more of it means wider chunks of columns, each of which reads the activations
  // once. Each thread has it. (512 rows, amx: 2 MiB 2 to 6 % faster than 1, 4 MiB 3 to 9.)
  int64_t carry_bytes = 0;
  // Up to so many rows panels are read one by one, as one stream of memory; more read two side by
  // side. (Grid, one row, 4 bits: side by side 6 to 15 % faster; 8 bits: 3 to 11 % slower.)
  int64_t streamed_rows = 0;
  // From so many rows on tiles are taken, where there are any. (Grid, amx, 4 bits: registers are
  // faster by 28 % at 3 rows and 12 % at 8 with K = 2048, by 18 and 1 % with K = 8192; 8 bits: by
  // 3 %, and slower by 4.)
  int64_t tile_rows_from = 0;
  // 1: weights that several rows share are prefetched into L2, kAheadInL2 ahead, and read one panel at a time; 0: into
  // L1, as those of one row. The default is below. In the kernels of AVX-512.
  int64_t shared_into_l2 = 0;
  // Of the second level of a core, which rows and weights of products in registers have to stay in. The default is
  // second_level_cache(). Floats and the grid on tiles are cut for 2 MiB, which every machine with tiles has.
  int64_t cache_bytes = 0;
};

// Defaults of Tuning::stream_ahead. AMD's Zen 4 reads one stream fastest by itself, with two lines ahead. (Zen 4, avx512, one row, one thread, GB/s of processor time at 128 bytes and at
// 2 KiB: bf16 22 to 24 and 14 to 18; Q8_0 of 178 MB 22 and 16; int8 of 263 MB 23 and 22, of 7 to 200 MB
// 20 to 24 and 21; Q5_0 and Q6_K, partly in L3, within noise. A plain loop reads 27 at 512 bytes, 22
// from 1 KiB on.)
//
// Zen 3 does not. (One thread that reads 20 GB/s, avx2, 128 bytes, 2 and 8 KiB ahead, the median of three
// rounds, GB/s: bf16 of 3072 x 1024 14.1, 15.7, 14.5; int8 of 2048 x 2048 and 4 rows 7.8, 11.0, 11.5; int4
// of 3072 x 1024 5.9, 10.1, 8.7, and of 1024 x 3072 6.9, 9.6, 8.5.)
//
// Zen 5 reads floats at 38 to 40 GB/s where a panel alone is read 8 KiB ahead, or 12 for 5 to 8 rows, and at 24 to
// 35 with two lines ahead. Codes do not lie in the order in which they are read: scales come first or
// last, bits in planes, and panels go side by side. (Likewise, at 128 bytes, 2, 4 and 8 KiB: bf16 33 to
// 36, 34, 34, 33; Q8_0 38, 39, 39, 39; int4 31, 31, 35, 36; Q4_K 22, 33, 38, 36; Q6_K 23, 31, 37, 36;
// int8 by 64, weights alone, 14 to 18, 30, 32, 31.)
int64_t floats_ahead();
int64_t codes_ahead(int64_t elsewhere);

// Likewise, of codes that take instructions before they are multiplied: those keep Zen 4 from looking ahead by itself, and two
// lines are too few. (One row, one thread, avx512, GB/s at 128 bytes and 8 KiB: Q6_K 12.6 and 25.5, Q5_K 15.3 and
// 27.7, Q3_K 14.6 and 23.4, Q4_K 22.2 and 24.2, MXFP4 24.6 and 26.5, Q4_0 27.7 and 28.7, int4 22.9 and 24.0; not
// so of Q8_0, which takes none, 24.5 and 23.0, and of Q5_0 and Q5_1, 24.7 and 23.2, 24.9 and 24.0.)
int64_t unpacked_ahead(int64_t elsewhere);
// And where they become floats: then into L2. (Likewise, two lines ahead, the best of 1 to 8 KiB into L1, and 16 KiB
// into L2: int4 by 128 20.8, 19.8 and 28.7; NF4 24.2, 23.4, 28.7; NVFP4 19.3, 22.4, 25.1; FP8 16.6, 22.3, 23.2; int8 by
// 128 20.7, 20.8, 21.0; codebooks of 4 and 3 bits 13.8, 17.5, 19.2 and 14.5, 15.8, 16.7. MXFP4 as whole numbers loses by L2:
// 22.5.)
int64_t decoded_ahead(int64_t elsewhere);

// The default of Tuning::shared_into_l2. Where arithmetic keeps a processor from looking ahead by itself, shared weights
// must be on their way for so long that an L1 of 32 KiB does not hold them besides the rows. (Zen 4, avx512, loops of VDPBF16PS over 512 MB, one
// thread that reads 33 GB/s, peak 236 Gop/s: into L1 12 KiB ahead, 6 and 8 rows by one panel 121 and
// 147 Gop/s, 12 by two 208; into L2 16 KiB ahead, by one panel, 177, 225 and 229, 16 rows 229.)
constexpr int64_t kAheadInL2 = 16 << 10;
// How far ahead weights are prefetched at least for several rows, which leave a processor less time to look ahead by
// itself. (Zen 4, one thread, GB/s of 8 rows at 128 bytes and 8 KiB: Q8_0 7.7 and 10.0, Q4_0 6.9 and 10.2, Q4_K 5.5 and 10.2,
// Q6_K 4.9 and 10.6.)
constexpr int64_t kLeastAhead = 8 << 10;
int64_t shared_into_l2();

// A parameter that this instruction set heeds.
struct TunedField {
  std::string_view name;
  int64_t Tuning::*value;
  int64_t least, most;
};

std::span<const TunedField> tuned_fields(const PackedMatrix&);
std::span<const TunedField> tuned_fields(const IntMatrix&);
std::span<const TunedField> tuned_fields(const GridMatrix&);
std::span<const TunedField> tuned_fields(const BlockMatrix&);
std::span<const TunedField> tuned_fields(const CodebookMatrix&);

}  // namespace penstock
