#include "gemm_tuning.h"

namespace penstock {
namespace {

[[maybe_unused]] constexpr int64_t kTwoLines = 128;

}  // namespace

int64_t floats_ahead() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("amdfam17h") || __builtin_cpu_is("amdfam19h")) return kTwoLines;
#endif
  return 8 << 10;
}

int64_t codes_ahead(int64_t elsewhere) {
#if defined(__x86_64__)
  if (__builtin_cpu_is("amdfam17h") || __builtin_cpu_is("amdfam19h")) return kTwoLines;
  if (__builtin_cpu_is("amd")) return 8 << 10;
#endif
  return elsewhere;
}

bool streams_into_l2() {
#if defined(__AVX512F__)
  static const bool zen4 = __builtin_cpu_is("amdfam19h");
  return zen4;
#else
  return false;
#endif
}

std::span<const TunedField> tuned_fields(const PackedMatrix&) {
  static constexpr TunedField fields[] = {
      {"stream_ahead", &Tuning::stream_ahead, 64, 64 << 10},
      {"carry_bytes", &Tuning::carry_bytes, 64 << 10, 16 << 20}};
  return fields;
}

std::span<const TunedField> tuned_fields(const GridMatrix&) {
  static constexpr TunedField fields[] = {
      {"stream_ahead", &Tuning::stream_ahead, 64, 64 << 10},
      {"streamed_rows", &Tuning::streamed_rows, 0, 12},
#if defined(__AMX_INT8__)
      {"tile_rows_from", &Tuning::tile_rows_from, 1, 64},
#endif
  };
  return fields;
}

std::span<const TunedField> tuned_fields(const IntMatrix&) {
#if defined(__aarch64__)
  return {};  // its kernel has a distance of its own
#else
  static constexpr TunedField fields[] = {
      {"stream_ahead", &Tuning::stream_ahead, 64, 64 << 10}};
  return fields;
#endif
}

std::span<const TunedField> tuned_fields(const BlockMatrix&) {
  static constexpr TunedField fields[] = {
      {"stream_ahead", &Tuning::stream_ahead, 64, 64 << 10}};
  return fields;
}

}  // namespace penstock
