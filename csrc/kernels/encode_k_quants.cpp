// Rounding to Q4_K, Q5_K and Q6_K: as quant/encode/k_quants.py, bit by bit.
#include <algorithm>
#include <limits>

#include "encode_batch.h"

namespace penstock {
namespace {

constexpr int kRounds = 2;  // as quant/encode/k_quants.py

// --- k-quants with offsets: Q4_K, Q5_K ---

constexpr int kSubs = 8;
constexpr int kSubColumns = kSuper / kSubs;

struct OffsetFit {
  f32x16 unit, less;
  f32x16 scales[kSubs], offsets[kSubs];
};

void weigh_with_offsets(Batch<kSuper>& batch) {
  f32x16 squares[kSubs], total = f32x16::zero();
  for (int sub = 0; sub < kSubs; ++sub) {
    squares[sub] = f32x16::zero();
    for (int i = 0; i < kSubColumns; ++i) {
      const f32x16 v = f32x16::load(batch.x[sub * kSubColumns + i]);
      squares[sub] += v * v;
    }
    total += squares[sub];
  }
  const f32x16 twice = lanes_of(2.0f) * (total / lanes_of(float(kSuper)));
  for (int sub = 0; sub < kSubs; ++sub) {
    const f32x16 root = sqrt(squares[sub] / lanes_of(float(kSubColumns)));
    for (int i = 0; i < kSubColumns; ++i) {
      const f32x16 v = f32x16::load(batch.x[sub * kSubColumns + i]);
      LaneRow& weights = batch.weights[sub * kSubColumns + i];
      if (batch.weighted) (f32x16::load(weights) * sqrt(twice + v * v)).store(weights);
      else (abs(v) + root).store(weights);
    }
  }
}

// The units that fit codes and integer scales best.
void fit_units(OffsetFit& fit, const FitSums* sums, const FitConstants* of) {
  const f32x16 zero = f32x16::zero();
  f32x16 a = zero, b = zero, c = zero, p = zero, q = zero;
  for (int sub = 0; sub < kSubs; ++sub) {
    const f32x16 scale = fit.scales[sub], offset = fit.offsets[sub];
    a += scale * scale * sums[sub].cc;
    b += scale * offset * sums[sub].c;
    c += offset * offset * of[sub].one;
    p += scale * sums[sub].cx;
    q += offset * of[sub].x;
  }
  f32x16 unit = safe_divide(p * c - b * q, a * c - b * b);
  f32x16 minimum = safe_divide(b * unit - q, c);
  const f32x16 alone = safe_divide(p, a);
  const auto both = [&](f32x16 now, f32x16 otherwise) {
    return select_less(zero, minimum, select_less(zero, unit, now, otherwise), otherwise);
  };
  const f32x16 chosen = both(unit, alone), less = both(minimum, zero);
  fit.unit = to_float16(select_less(zero, chosen, chosen, fit.unit));
  fit.less = to_float16(select_less(zero, chosen, less, fit.less));
}

// The integer scales of a sub-block that fit its codes best.
void fit_scales(OffsetFit& fit, int sub, const FitSums& sums, const FitConstants& of) {
  // Beyond these bounds all three neighbours are clipped to the same scale.
  const f32x16 fitted = safe_divide(least_squares(sums, of).step, fit.unit);
  const f32x16 near = round_and_clip(fitted, -2.0f, 65.0f);
  f32x16 least = lanes_of(std::numeric_limits<float>::infinity());
  fit.scales[sub] = fit.offsets[sub] = f32x16::zero();
  for (const float aside : {-1.0f, 0.0f, 1.0f}) {
    const f32x16 scale = min(max(near + lanes_of(aside), f32x16::zero()), lanes_of(63.0f));
    const f32x16 step = fit.unit * scale;
    const f32x16 below = safe_divide(step * sums.c - of.x, of.one);
    const f32x16 offset = round_and_clip(safe_divide(below, fit.less), 0.0f, 63.0f);
    const f32x16 error = squared_error({step, fit.less * offset}, sums, of);
    fit.scales[sub] = select_less(error, least, scale, fit.scales[sub]);
    fit.offsets[sub] = select_less(error, least, offset, fit.offsets[sub]);
    least = select_less(error, least, error, least);
  }
}

OffsetFit fit_with_offsets(Batch<kSuper>& batch, float top) {
  weigh_with_offsets(batch);
  FitConstants of[kSubs];
  OffsetFit fit;
  f32x16 largest = f32x16::zero(), deepest = f32x16::zero();
  FitLine lines[kSubs];
  for (int sub = 0; sub < kSubs; ++sub) {
    const LaneRow *x = batch.x + sub * kSubColumns, *weights = batch.weights + sub * kSubColumns;
    of[sub] = fit_constants<kSubColumns>(x, weights);
    lines[sub] = search_scale_and_min<kSubColumns>(x, weights, of[sub], top);
    largest = max(lines[sub].step, largest);
    deepest = max(lines[sub].minimum, deepest);
  }
  fit.unit = to_float16(largest / lanes_of(63.0f));
  fit.less = to_float16(deepest / lanes_of(63.0f));
  for (int sub = 0; sub < kSubs; ++sub) {
    fit.scales[sub] = round_and_clip(safe_divide(lines[sub].step, fit.unit), 0.0f, 63.0f);
    fit.offsets[sub] = round_and_clip(safe_divide(lines[sub].minimum, fit.less), 0.0f, 63.0f);
  }
  OffsetFit best = fit;
  f32x16 least = lanes_of(std::numeric_limits<float>::infinity());
  for (int turn = 0; turn <= kRounds; ++turn) {
    FitSums sums[kSubs];
    f32x16 error = f32x16::zero();
    for (int sub = 0; sub < kSubs; ++sub) {
      const FitLine line{fit.unit * fit.scales[sub], fit.less * fit.offsets[sub]};
      const f32x16 per_step = safe_divide(lanes_of(1.0f), line.step);
      for (int i = sub * kSubColumns; i < (sub + 1) * kSubColumns; ++i) {
        const f32x16 v = f32x16::load(batch.x[i]);
        sums[sub].add(code_with_offset(v, line.minimum, per_step, top), v,
                      f32x16::load(batch.weights[i]));
      }
      error += squared_error(line, sums[sub], of[sub]);
    }
    const auto better = [&](f32x16 now, f32x16 old) {
      return select_less(error, least, now, old);
    };
    best.unit = better(fit.unit, best.unit);
    best.less = better(fit.less, best.less);
    for (int sub = 0; sub < kSubs; ++sub) {
      best.scales[sub] = better(fit.scales[sub], best.scales[sub]);
      best.offsets[sub] = better(fit.offsets[sub], best.offsets[sub]);
    }
    least = better(error, least);
    if (turn == kRounds) break;
    fit_units(fit, sums, of);
    for (int sub = 0; sub < kSubs; ++sub) fit_scales(fit, sub, sums[sub], of[sub]);
  }
  for (int sub = 0; sub < kSubs; ++sub) {
    const f32x16 minimum = best.less * best.offsets[sub];
    const f32x16 per_step = safe_divide(lanes_of(1.0f), best.unit * best.scales[sub]);
    for (int i = sub * kSubColumns; i < (sub + 1) * kSubColumns; ++i)
      batch.keep(i, code_with_offset(f32x16::load(batch.x[i]), minimum, per_step, top));
  }
  return best;
}

template <int kBits>
void encode_with_offsets(Batch<kSuper>& batch, int count, uint8_t* out) {
  const OffsetFit fit = fit_with_offsets(batch, float((1 << kBits) - 1));
  alignas(64) LaneRow unit, less, scales[kSubs], offsets[kSubs];
  fit.unit.store(unit);
  fit.less.store(less);
  for (int sub = 0; sub < kSubs; ++sub) {
    fit.scales[sub].store(scales[sub]);
    fit.offsets[sub].store(offsets[sub]);
  }
  for (int lane = 0; lane < count; ++lane) {
    put_half(out, unit[lane]);
    put_half(out + 2, less[lane]);
    out += 4;
    const auto scale = [&](int sub) { return int(scales[sub][lane]); };
    const auto offset = [&](int sub) { return int(offsets[sub][lane]); };
    for (int i = 0; i < 4; ++i) {
      out[i] = uint8_t(scale(i) | (scale(i + 4) >> 4) << 6);
      out[i + 4] = uint8_t(offset(i) | (offset(i + 4) >> 4) << 6);
      out[i + 8] = uint8_t((scale(i + 4) & 15) | (offset(i + 4) & 15) << 4);
    }
    out += 12;
    const uint8_t* codes = batch.codes[lane];
    if constexpr (kBits == 5) out = put_planes(out, codes, kSuper, 32, 1, 4);
    out = put_planes(out, codes, kSuper, 32, 4, 0);
  }
}

// --- k-quants without offsets: Q6_K ---

constexpr int kManySubs = 16;
constexpr int kFewColumns = kSuper / kManySubs;

void encode_q6_k(Batch<kSuper>& batch, int count, uint8_t* out) {
  constexpr float kMiddle = 32.0f;
  if (!batch.weighted)
    for (int i = 0; i < kSuper; ++i) {
      const f32x16 v = f32x16::load(batch.x[i]);
      (v * v).store(batch.weights[i]);
    }
  f32x16 scales[kManySubs], best[kManySubs];
  f32x16 largest = f32x16::zero(), magnitude = f32x16::zero();
  for (int sub = 0; sub < kManySubs; ++sub) {
    const int first = sub * kFewColumns;
    const f32x16 scale =
        search_scale<kFewColumns>(batch.x + first, batch.weights + first, kMiddle);
    largest = select_less(magnitude, abs(scale), scale, largest);
    magnitude = max(abs(scale), magnitude);
    scales[sub] = scale;
  }
  f32x16 unit = to_float16(largest / lanes_of(-128.0f));
  for (f32x16& scale : scales) scale = round_and_clip(safe_divide(scale, unit), -128.0f, 127.0f);
  f32x16 best_unit = unit;
  std::copy(scales, scales + kManySubs, best);
  f32x16 least = lanes_of(std::numeric_limits<float>::infinity());
  for (int turn = 0; turn <= kRounds; ++turn) {
    FitSums sums[kManySubs];
    f32x16 error = f32x16::zero();
    for (int sub = 0; sub < kManySubs; ++sub) {
      const f32x16 step = unit * scales[sub], per_step = safe_divide(lanes_of(1.0f), step);
      for (int i = sub * kFewColumns; i < (sub + 1) * kFewColumns; ++i) {
        const f32x16 v = f32x16::load(batch.x[i]);
        sums[sub].add(code_around(v, per_step, kMiddle), v, f32x16::load(batch.weights[i]));
      }
      error += step * (step * sums[sub].cc - lanes_of(2.0f) * sums[sub].cx);
    }
    best_unit = select_less(error, least, unit, best_unit);
    for (int sub = 0; sub < kManySubs; ++sub)
      best[sub] = select_less(error, least, scales[sub], best[sub]);
    least = select_less(error, least, error, least);
    if (turn == kRounds) break;
    f32x16 p = f32x16::zero(), a = f32x16::zero();
    for (int sub = 0; sub < kManySubs; ++sub) {
      p += scales[sub] * sums[sub].cx;
      a += scales[sub] * scales[sub] * sums[sub].cc;
    }
    const f32x16 fit = safe_divide(p, a);
    unit = to_float16(select_less(f32x16::zero(), abs(fit), fit, unit));
    for (int sub = 0; sub < kManySubs; ++sub)
      scales[sub] = round_and_clip(safe_divide(safe_divide(sums[sub].cx, sums[sub].cc), unit),
                                   -128.0f, 127.0f);
  }
  alignas(64) LaneRow units, whole_scales[kManySubs];
  best_unit.store(units);
  for (int sub = 0; sub < kManySubs; ++sub) {
    best[sub].store(whole_scales[sub]);
    const f32x16 per_step = safe_divide(lanes_of(1.0f), best_unit * best[sub]);
    for (int i = sub * kFewColumns; i < (sub + 1) * kFewColumns; ++i)
      batch.keep(i, code_around(f32x16::load(batch.x[i]), per_step, kMiddle) + lanes_of(kMiddle));
  }
  for (int lane = 0; lane < count; ++lane) {
    const uint8_t* codes = batch.codes[lane];
    out = put_planes(out, codes, kSuper, 64, 4, 0);
    out = put_planes(out, codes, kSuper, 32, 2, 4);
    for (const LaneRow& scale : whole_scales) *out++ = uint8_t(int8_t(int(scale[lane])));
    put_half(out, units[lane]);
    out += 2;
  }
}

}  // namespace

Encode<kSuper> encoder_of_super(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_k: return &encode_with_offsets<4>;
    case WeightFormat::q5_k: return &encode_with_offsets<5>;
    case WeightFormat::q6_k: return &encode_q6_k;
    default: return nullptr;
  }
}

}  // namespace penstock
