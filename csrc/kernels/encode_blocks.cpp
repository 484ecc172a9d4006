#include "encode_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "encode_k_quants.h"
#include "gemm_block_read.h"

namespace penstock {
namespace {

const float kBelowHalf = std::nextafter(0.5f, 0.0f);

// --- Blocks of 32 columns ---

void weigh_small(Batch<kSmall>& batch) {
  f32x16 squares = f32x16::zero();
  for (const LaneRow& row : batch.x) squares += f32x16::load(row) * f32x16::load(row);
  const f32x16 mean = squares / lanes_of(float(kSmall));
  for (int i = 0; i < kSmall; ++i) {
    const f32x16 v = f32x16::load(batch.x[i]);
    (f32x16::load(batch.weights[i]) * sqrt(mean + v * v)).store(batch.weights[i]);
  }
}

// A block's codes of 4 or 5 bits behind its float16 numbers.
template <int kBits>
uint8_t* put_codes(uint8_t* out, const uint8_t* codes) {
  if constexpr (kBits == 5) {
    for (int i = 0; i < kSmall; i += 8) {
      int high = 0;
      for (int bit = 0; bit < 8; ++bit) high |= (codes[i + bit] >> 4) << bit;
      *out++ = uint8_t(high);
    }
  }
  return put_planes(out, codes, kSmall, kSmall / 2, 4, 0);
}

template <int kBits>
void encode_around(Batch<kSmall>& batch, int count, uint8_t* out) {
  constexpr float kMiddle = float(1 << (kBits - 1));
  f32x16 scale;
  if (batch.weighted) {
    weigh_small(batch);
    scale = to_float16(search_scale<kSmall>(batch.x, batch.weights, kMiddle));
    const f32x16 per_step = safe_divide(lanes_of(1.0f), scale);
    for (int i = 0; i < kSmall; ++i)
      batch.keep(i, code_around(f32x16::load(batch.x[i]), per_step, kMiddle) + lanes_of(kMiddle));
  } else {
    f32x16 largest = f32x16::load(batch.x[0]), magnitude = abs(largest);
    for (const LaneRow& row : batch.x) {
      const f32x16 v = f32x16::load(row);
      largest = select_less(magnitude, abs(v), v, largest);
      magnitude = max(abs(v), magnitude);
    }
    scale = largest / lanes_of(-kMiddle);
    const f32x16 inverse = safe_divide(lanes_of(1.0f), scale);
    for (int i = 0; i < kSmall; ++i) {
      const f32x16 code = f32x16::load(batch.x[i]) * inverse + lanes_of(kMiddle + 0.5f);
      batch.keep(i, min(code, lanes_of(2 * kMiddle - 1)));
    }
  }
  alignas(64) LaneRow scales;
  scale.store(scales);
  for (int lane = 0; lane < count; ++lane) {
    put_half(out, scales[lane]);
    out = put_codes<kBits>(out + 2, batch.codes[lane]);
  }
}

template <int kBits>
void encode_above(Batch<kSmall>& batch, int count, uint8_t* out) {
  constexpr float kTop = float((1 << kBits) - 1);
  f32x16 scale, least;
  if (batch.weighted) {
    weigh_small(batch);
    const FitConstants of = fit_constants<kSmall>(batch.x, batch.weights);
    const FitLine line = search_scale_and_min<kSmall>(batch.x, batch.weights, of, kTop);
    scale = to_float16(line.step);
    const f32x16 offset = to_float16(line.minimum), per_step = safe_divide(lanes_of(1.0f), scale);
    for (int i = 0; i < kSmall; ++i)
      batch.keep(i, code_with_offset(f32x16::load(batch.x[i]), offset, per_step, kTop));
    least = f32x16::zero() - offset;
  } else {
    f32x16 most = f32x16::load(batch.x[0]);
    least = most;
    for (const LaneRow& row : batch.x) {
      most = max(f32x16::load(row), most);
      least = min(f32x16::load(row), least);
    }
    least = least + f32x16::zero();
    scale = (most - least) / lanes_of(kTop) + f32x16::zero();
    const f32x16 inverse = safe_divide(lanes_of(1.0f), scale);
    for (int i = 0; i < kSmall; ++i) {
      const f32x16 code = (f32x16::load(batch.x[i]) - least) * inverse + lanes_of(0.5f);
      batch.keep(i, min(code, lanes_of(kTop)));
    }
  }
  alignas(64) LaneRow scales, leasts;
  scale.store(scales);
  least.store(leasts);
  for (int lane = 0; lane < count; ++lane) {
    put_half(out, scales[lane]);
    put_half(out + 2, leasts[lane]);
    out = put_codes<kBits>(out + 4, batch.codes[lane]);
  }
}

void encode_q8_0(Batch<kSmall>& batch, int count, uint8_t* out) {
  f32x16 magnitude = f32x16::zero();
  for (const LaneRow& row : batch.x) magnitude = max(abs(f32x16::load(row)), magnitude);
  const f32x16 scale = magnitude / lanes_of(127.0f), inverse = safe_divide(lanes_of(1.0f), scale);
  const f32x16 zero = f32x16::zero(), half_step = lanes_of(kBelowHalf);
  for (int i = 0; i < kSmall; ++i) {
    const f32x16 code = f32x16::load(batch.x[i]) * inverse;
    batch.keep(i, select_less(code, zero, code - half_step, code + half_step));
  }
  alignas(64) LaneRow scales;
  scale.store(scales);
  for (int lane = 0; lane < count; ++lane) {
    put_half(out, scales[lane]);
    std::memcpy(out + 2, batch.codes[lane], kSmall);
    out += 2 + kSmall;
  }
}

Encode<kSmall> encoder_of_small(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_0: return &encode_around<4>;
    case WeightFormat::q4_1: return &encode_above<4>;
    case WeightFormat::q5_0: return &encode_around<5>;
    case WeightFormat::q5_1: return &encode_above<5>;
    case WeightFormat::q8_0: return &encode_q8_0;
    default: return nullptr;
  }
}

Encode<kSuper> encoder_of_super(WeightFormat format) {
  const auto with_offsets = encoder_with_offsets(format);
  return with_offsets ? with_offsets : encoder_without_offsets(format);
}

template <int kColumns>
void encode_all(Encode<kColumns> encode, int bytes, const float* values, int64_t blocks,
                const float* importance, int64_t per_row, uint8_t* out) {
  Batch<kColumns> batch;
  for (int64_t first = 0; first < blocks; first += kEncodeLanes) {
    const int count = int(std::min<int64_t>(kEncodeLanes, blocks - first));
    batch.load(values, first, count, importance, per_row);
    encode(batch, count, out + first * bytes);
  }
}

}  // namespace

bool is_encoded(WeightFormat format) {
  return encoder_of_super(format) != nullptr || encoder_of_small(format) != nullptr;
}

void encode_blocks(WeightFormat format, const float* values, int64_t blocks,
                   const float* importance, int64_t per_row, uint8_t* out) {
  const int bytes = int(block_size(format).bytes);
  if (const auto encode_super = encoder_of_super(format))
    encode_all<kSuper>(encode_super, bytes, values, blocks, importance, per_row, out);
  else if (const auto encode_small = encoder_of_small(format))
    encode_all<kSmall>(encode_small, bytes, values, blocks, importance, per_row, out);
  else throw std::invalid_argument("no kernel rounds to blocks of this format");
}

}  // namespace penstock
