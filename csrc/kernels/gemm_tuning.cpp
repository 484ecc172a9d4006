#include "gemm_tuning.h"

namespace penstock {

std::span<const TunedField<DenseTuning>> tuned_fields(const DenseTuning&) {
  static constexpr TunedField<DenseTuning> fields[] = {
      {"stream_ahead", &DenseTuning::stream_ahead, 64, 64 << 10},
      {"carry_bytes", &DenseTuning::carry_bytes, 64 << 10, 16 << 20}};
  return fields;
}

std::span<const TunedField<GridTuning>> tuned_fields(const GridTuning&) {
  static constexpr TunedField<GridTuning> fields[] = {
      {"streamed_rows", &GridTuning::streamed_rows, 0, 12},
#if defined(__AMX_INT8__)
      {"tile_rows_from", &GridTuning::tile_rows_from, 1, 64},
#endif
  };
  return fields;
}

std::span<const TunedField<IntTuning>> tuned_fields(const IntTuning&) {
#if defined(__aarch64__)
  return {};  // its kernel has a distance of its own
#else
  static constexpr TunedField<IntTuning> fields[] = {
      {"stream_ahead", &IntTuning::stream_ahead, 64, 64 << 10}};
  return fields;
#endif
}

}  // namespace penstock
