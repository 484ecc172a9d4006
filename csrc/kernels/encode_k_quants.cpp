// Rounding to Q2_K to Q6_K: as quant/encode/k_quants.py, bit by bit.
#include <algorithm>
#include <limits>

#include "encode_batch.h"

namespace penstock {
namespace {

constexpr int kRounds = 2;  // as quant/encode/k_quants.py

template <int kSubs>
constexpr int kColumnsOf = kSuper / kSubs;

// How much errors count, but for Q6_K.
template <int kSubs>
void weigh(Batch<kSuper>& batch) {
  constexpr int kSubColumns = kColumnsOf<kSubs>;
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

// --- k-quants with offsets: Q2_K, Q4_K, Q5_K ---

// What a format has: sub-blocks, the largest scale and offset, the largest code.
template <int kSubsOf, int kMostOf, int kTopOf>
struct Offsets {
  static constexpr int kSubs = kSubsOf, kSubColumns = kColumnsOf<kSubsOf>;
  static constexpr float kMost = float(kMostOf), kTop = float(kTopOf);
};
using OffsetsQ2 = Offsets<16, 15, 3>;
using OffsetsQ4 = Offsets<8, 63, 15>;
using OffsetsQ5 = Offsets<8, 63, 31>;

template <class F>
struct OffsetFit {
  f32x16 unit, less;
  f32x16 scales[F::kSubs], offsets[F::kSubs];
};

// The units that fit codes and integer scales best.
template <class F>
void fit_units(OffsetFit<F>& fit, const FitSums* sums, const FitConstants* of) {
  const f32x16 zero = f32x16::zero();
  f32x16 a = zero, b = zero, c = zero, p = zero, q = zero;
  for (int sub = 0; sub < F::kSubs; ++sub) {
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
template <class F>
void fit_scales(OffsetFit<F>& fit, int sub, const FitSums& sums, const FitConstants& of) {
  // Beyond these bounds all three neighbours are clipped to the same scale.
  const f32x16 fitted = safe_divide(least_squares(sums, of).step, fit.unit);
  const f32x16 near = round_and_clip(fitted, -2.0f, F::kMost + 2);
  f32x16 least = lanes_of(std::numeric_limits<float>::infinity());
  fit.scales[sub] = fit.offsets[sub] = f32x16::zero();
  for (const float aside : {-1.0f, 0.0f, 1.0f}) {
    const f32x16 scale = min(max(near + lanes_of(aside), f32x16::zero()), lanes_of(F::kMost));
    const f32x16 step = fit.unit * scale;
    const f32x16 below = safe_divide(step * sums.c - of.x, of.one);
    const f32x16 offset = round_and_clip(safe_divide(below, fit.less), 0.0f, F::kMost);
    const f32x16 error = squared_error({step, fit.less * offset}, sums, of);
    fit.scales[sub] = select_less(error, least, scale, fit.scales[sub]);
    fit.offsets[sub] = select_less(error, least, offset, fit.offsets[sub]);
    least = select_less(error, least, error, least);
  }
}

template <class F>
OffsetFit<F> fit_with_offsets(Batch<kSuper>& batch) {
  constexpr int kSubs = F::kSubs, kSubColumns = F::kSubColumns;
  constexpr float top = F::kTop;
  weigh<kSubs>(batch);
  FitConstants of[kSubs];
  OffsetFit<F> fit;
  f32x16 largest = f32x16::zero(), deepest = f32x16::zero();
  FitLine lines[kSubs];
  for (int sub = 0; sub < kSubs; ++sub) {
    const LaneRow *x = batch.x + sub * kSubColumns, *weights = batch.weights + sub * kSubColumns;
    of[sub] = fit_constants<kSubColumns>(x, weights);
    lines[sub] = search_scale_and_min<kSubColumns>(x, weights, of[sub], top);
    largest = max(lines[sub].step, largest);
    deepest = max(lines[sub].minimum, deepest);
  }
  fit.unit = to_float16(largest / lanes_of(F::kMost));
  fit.less = to_float16(deepest / lanes_of(F::kMost));
  for (int sub = 0; sub < kSubs; ++sub) {
    fit.scales[sub] = round_and_clip(safe_divide(lines[sub].step, fit.unit), 0.0f, F::kMost);
    fit.offsets[sub] = round_and_clip(safe_divide(lines[sub].minimum, fit.less), 0.0f, F::kMost);
  }
  OffsetFit<F> best = fit;
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

// What blocks are written of, lane by lane.
template <class F>
struct OffsetLanes {
  alignas(64) LaneRow unit, less, scales[F::kSubs], offsets[F::kSubs];

  explicit OffsetLanes(const OffsetFit<F>& fit) {
    fit.unit.store(unit);
    fit.less.store(less);
    for (int sub = 0; sub < F::kSubs; ++sub) {
      fit.scales[sub].store(scales[sub]);
      fit.offsets[sub].store(offsets[sub]);
    }
  }
  uint8_t* put_units(uint8_t* out, int lane) const {
    put_half(out, unit[lane]);
    put_half(out + 2, less[lane]);
    return out + 4;
  }
};

void encode_q2_k(Batch<kSuper>& batch, int count, uint8_t* out) {
  const OffsetLanes<OffsetsQ2> fit(fit_with_offsets<OffsetsQ2>(batch));
  for (int lane = 0; lane < count; ++lane) {
    for (int sub = 0; sub < OffsetsQ2::kSubs; ++sub)
      *out++ = uint8_t(int(fit.scales[sub][lane]) | int(fit.offsets[sub][lane]) << 4);
    out = put_planes(out, batch.codes[lane], kSuper, 32, 2, 0);
    out = fit.put_units(out, lane);
  }
}

template <class F>
void encode_with_offsets(Batch<kSuper>& batch, int count, uint8_t* out) {
  const OffsetLanes<F> fit(fit_with_offsets<F>(batch));
  for (int lane = 0; lane < count; ++lane) {
    out = fit.put_units(out, lane);
    const auto scale = [&](int sub) { return int(fit.scales[sub][lane]); };
    const auto offset = [&](int sub) { return int(fit.offsets[sub][lane]); };
    for (int i = 0; i < 4; ++i) {
      out[i] = uint8_t(scale(i) | (scale(i + 4) >> 4) << 6);
      out[i + 4] = uint8_t(offset(i) | (offset(i + 4) >> 4) << 6);
      out[i + 8] = uint8_t((scale(i + 4) & 15) | (offset(i + 4) & 15) << 4);
    }
    out += 12;
    const uint8_t* codes = batch.codes[lane];
    if constexpr (F::kTop > 15) out = put_planes(out, codes, kSuper, 32, 1, 4);
    out = put_planes(out, codes, kSuper, 32, 4, 0);
  }
}

// --- k-quants without offsets: Q3_K, Q6_K ---

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
  for (int turn = 0; turn <= kRounds; ++turn) {
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

Encode<kSuper> encoder_of_super(WeightFormat format) {
  switch (format) {
    case WeightFormat::q2_k: return &encode_q2_k;
    case WeightFormat::q3_k: return &encode_q3_k;
    case WeightFormat::q4_k: return &encode_with_offsets<OffsetsQ4>;
    case WeightFormat::q5_k: return &encode_with_offsets<OffsetsQ5>;
    case WeightFormat::q6_k: return &encode_q6_k;
    default: return nullptr;
  }
}

}  // namespace penstock
