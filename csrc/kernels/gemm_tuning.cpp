#include "gemm_tuning.h"

#include "../caches.h"

namespace penstock {
namespace {

// How far ahead AMD's processors up to Zen 4 are asked for a stream; 0 on others.
int64_t ahead_up_to_zen4() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("znver3")) return 2 << 10;
  if (__builtin_cpu_is("amdfam17h") || __builtin_cpu_is("amdfam19h")) return 128;  // two lines
#endif
  return 0;
}

// With its AVX-512.
bool is_zen4() {
#if defined(__AVX512F__)
  return __builtin_cpu_is("amdfam19h");  // Zen 3 has no AVX-512
#else
  return false;
#endif
}

[[maybe_unused]] constexpr TunedField kStreamAhead{"stream_ahead", &Tuning::stream_ahead, 64, 64 << 10};
constexpr TunedField kCacheBytes{"cache_bytes", &Tuning::cache_bytes, kLeastCache, kMostCache};
[[maybe_unused]] constexpr TunedField kSharedIntoL2{"shared_into_l2", &Tuning::shared_into_l2, 0, 1};

}  // namespace

int64_t floats_ahead() {
  const int64_t ahead = ahead_up_to_zen4();
  return ahead ? ahead : 8 << 10;
}

int64_t codes_ahead(int64_t elsewhere) {
  if (const int64_t ahead = ahead_up_to_zen4()) return ahead;
#if defined(__x86_64__)
  if (__builtin_cpu_is("amd")) return 8 << 10;
#endif
  return elsewhere;
}

int64_t unpacked_ahead(int64_t elsewhere) { return is_zen4() ? 8 << 10 : codes_ahead(elsewhere); }
int64_t decoded_ahead(int64_t elsewhere) { return is_zen4() ? kAheadInL2 : codes_ahead(elsewhere); }

int64_t shared_into_l2() { return is_zen4() ? 1 : 0; }

std::span<const TunedField> tuned_fields(const PackedMatrix&) {
  static constexpr TunedField fields[] = {
      kStreamAhead,
      {"carry_bytes", &Tuning::carry_bytes, 64 << 10, 16 << 20},
      kCacheBytes,
#if defined(__AVX512F__)
      kSharedIntoL2,
#endif
  };
  return fields;
}

std::span<const TunedField> tuned_fields(const GridMatrix&) {
  static constexpr TunedField fields[] = {
      kStreamAhead,
      {"streamed_rows", &Tuning::streamed_rows, 0, 12},
#if defined(__AVX512F__)
      kSharedIntoL2,
#endif
#if defined(__AMX_INT8__)
      {"tile_rows_from", &Tuning::tile_rows_from, 1, 64},
#endif
  };
  return fields;
}

std::span<const TunedField> tuned_fields(const IntMatrix&) {
  static constexpr TunedField fields[] = {
#if !defined(__aarch64__)  // whose kernel has a distance of its own
      kStreamAhead,
#endif
      kCacheBytes,
  };
  return fields;
}

std::span<const TunedField> tuned_fields(const BlockMatrix&) {
  static constexpr TunedField fields[] = {kStreamAhead};
  return fields;
}

std::span<const TunedField> tuned_fields(const CodebookMatrix&) {
  static constexpr TunedField fields[] = {kStreamAhead};
  return fields;
}

}  // namespace penstock
