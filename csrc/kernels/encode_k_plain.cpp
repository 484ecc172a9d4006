// Rounding to the k-quants whose sub-blocks have no offsets: Q3_K, Q6_K.
#include <algorithm>
#include <limits>

#include "encode_k_quants.h"

namespace penstock {
namespace {

constexpr int kManySubs = 16;
constexpr int kFewColumns = kSuper / kManySubs;

// What blocks are written of, lane by lane. Scales are whole numbers.
struct PlainLanes {
  alignas(64) LaneRow units, scales[kManySubs];
};

// Codes, moved up by the middle, are kept in the batch; scales are from -most to most - 1.
PlainLanes fit_without_offsets(Batch<kSuper>& batch, float middle, float most) {
  f32x16 scales[kManySubs], best[kManySubs];
  f32x16 largest = f32x16::zero(), magnitude = f32x16::zero();
  for (int sub = 0; sub < kManySubs; ++sub) {
    const int first = sub * kFewColumns;
    const f32x16 scale =
        search_scale<kFewColumns>(batch.x + first, batch.weights + first, middle);
    largest = select_less(magnitude, abs(scale), scale, largest);
    magnitude = max(abs(scale), magnitude);
    scales[sub] = scale;
  }
  f32x16 unit = to_float16(largest / lanes_of(-most));
  for (f32x16& scale : scales) scale = round_and_clip(safe_divide(scale, unit), -most, most - 1);
  f32x16 best_unit = unit;
  std::copy(scales, scales + kManySubs, best);
  f32x16 least = lanes_of(std::numeric_limits<float>::infinity());
  for (int turn = 0; turn <= kRefits; ++turn) {
    FitSums sums[kManySubs];
    f32x16 error = f32x16::zero();
    for (int sub = 0; sub < kManySubs; ++sub) {
      const f32x16 step = unit * scales[sub], per_step = safe_divide(lanes_of(1.0f), step);
      for (int i = sub * kFewColumns; i < (sub + 1) * kFewColumns; ++i) {
        const f32x16 v = f32x16::load(batch.x[i]);
        sums[sub].add(code_around(v, per_step, middle), v, f32x16::load(batch.weights[i]));
      }
      error += step * (step * sums[sub].cc - lanes_of(2.0f) * sums[sub].cx);
    }
    best_unit = select_less(error, least, unit, best_unit);
    for (int sub = 0; sub < kManySubs; ++sub)
      best[sub] = select_less(error, least, scales[sub], best[sub]);
    least = select_less(error, least, error, least);
    if (turn == kRefits) break;
    f32x16 p = f32x16::zero(), a = f32x16::zero();
    for (int sub = 0; sub < kManySubs; ++sub) {
      p += scales[sub] * sums[sub].cx;
      a += scales[sub] * scales[sub] * sums[sub].cc;
    }
    const f32x16 fit = safe_divide(p, a);
    unit = to_float16(select_less(f32x16::zero(), abs(fit), fit, unit));
    for (int sub = 0; sub < kManySubs; ++sub)
      scales[sub] = round_and_clip(safe_divide(safe_divide(sums[sub].cx, sums[sub].cc), unit),
                                   -most, most - 1);
  }
  PlainLanes fit_lanes;
  best_unit.store(fit_lanes.units);
  for (int sub = 0; sub < kManySubs; ++sub) {
    best[sub].store(fit_lanes.scales[sub]);
    const f32x16 per_step = safe_divide(lanes_of(1.0f), best_unit * best[sub]);
    for (int i = sub * kFewColumns; i < (sub + 1) * kFewColumns; ++i)
      batch.keep(i, code_around(f32x16::load(batch.x[i]), per_step, middle) + lanes_of(middle));
  }
  return fit_lanes;
}

void encode_q3_k(Batch<kSuper>& batch, int count, uint8_t* out) {
  constexpr int kMost = 32;
  weigh<kManySubs>(batch);
  const PlainLanes fit = fit_without_offsets(batch, 4.0f, float(kMost));
  for (int lane = 0; lane < count; ++lane) {
    const uint8_t* codes = batch.codes[lane];
    out = put_planes(out, codes, kSuper, 32, 1, 2);
    out = put_planes(out, codes, kSuper, 32, 2, 0);
    uint8_t scales[kManySubs];
    for (int sub = 0; sub < kManySubs; ++sub)
      scales[sub] = uint8_t(int(fit.scales[sub][lane]) + kMost);
    out = put_planes(out, scales, kManySubs, 8, 4, 0);
    out = put_planes(out, scales, kManySubs, 4, 2, 4);
    put_half(out, fit.units[lane]);
    out += 2;
  }
}

void encode_q6_k(Batch<kSuper>& batch, int count, uint8_t* out) {
  if (!batch.weighted)
    for (int i = 0; i < kSuper; ++i) {
      const f32x16 v = f32x16::load(batch.x[i]);
      (v * v).store(batch.weights[i]);
    }
  const PlainLanes fit = fit_without_offsets(batch, 32.0f, 128.0f);
  for (int lane = 0; lane < count; ++lane) {
    const uint8_t* codes = batch.codes[lane];
    out = put_planes(out, codes, kSuper, 64, 4, 0);
    out = put_planes(out, codes, kSuper, 32, 2, 4);
    for (const LaneRow& scale : fit.scales) *out++ = uint8_t(int8_t(int(scale[lane])));
    put_half(out, fit.units[lane]);
    out += 2;
  }
}

}  // namespace

Encode<kSuper> encoder_without_offsets(WeightFormat format) {
  switch (format) {
    case WeightFormat::q3_k: return &encode_q3_k;
    case WeightFormat::q6_k: return &encode_q6_k;
    default: return nullptr;
  }
}

}  // namespace penstock
