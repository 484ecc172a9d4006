// From accumulators to the output: bias, gate activation, rounding.
#pragma once

#include "../simd.h"
#include "gemm_cuts.h"

namespace penstock {

PENSTOCK_INLINE f32x16 activate(Activation a, f32x16 x) {
  switch (a) {
    case Activation::silu: return silu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::gelu: return gelu(x);
    case Activation::relu: return relu(x);
    case Activation::relu2: return relu(x) * relu(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::none:
    case Activation::identity: break;
  }
  return x;
}

PENSTOCK_INLINE f32x16 gated(const Gating& kind, f32x16 gate, f32x16 up) {
  if (!kind.clamped) return activate(kind.activation, gate) * up;
  const f32x16 one = f32x16::broadcast(1.0f), limit = f32x16::broadcast(kind.limit);
  const f32x16 g = min(limit, gate), u = max(f32x16::zero() - limit, min(limit, up));
  const f32x16 e = exp(f32x16::zero() - f32x16::broadcast(kind.alpha) * g);
  return (u + one) * (g * (one / (one + e)));
}

// Accumulators as they are: [part][rows][16].
struct FloatSums {
  const float* sums;
  int64_t part_floats;  // from gate to up

  PENSTOCK_INLINE f32x16 get(int part, int64_t row) const {
    return f32x16::load(sums + part * part_floats + row * kPanelColumns);
  }
};

// Sums that are still to be scaled, as FloatSums.
struct RowScaledSums {
  const float* sums;
  int64_t part_floats;  // from gate to up
  const float* scales;
  int64_t scale_floats;  // likewise

  PENSTOCK_INLINE f32x16 get(int part, int64_t row) const {
    return f32x16::load(sums + part * part_floats + row * kPanelColumns) *
           f32x16::load(scales + part * scale_floats);
  }
};

struct Epilogue {
  const float* bias;  // as in PackedMatrix
  Array out;
  int64_t n;
  bool gated;
  Gating gate;
  const int32_t* list = nullptr;  // the rows of `out` that rows go to; null: by their numbers

  // Finish 16 columns from `column` on of `rows` rows from `row` on. sums.get(part, r) is row r of
  // the first part, or of up.
  template <class Sums>
  void finish(const Sums& sums, int64_t row, int64_t rows, int64_t column) const {
    const int columns = int(n - column < kPanelColumns ? n - column : kPanelColumns);
    const f32x16 none = f32x16::zero();
    const f32x16 b = bias ? f32x16::load_n(bias + column, columns) : none;
    const f32x16 up_b = bias && gated ? f32x16::load_n(bias + n + column, columns) : none;
    for (int64_t r = 0; r < rows; ++r) {
      f32x16 y = sums.get(0, r);
      if (bias) y += b;
      if (gated) {
        f32x16 u = sums.get(1, r);
        if (bias) u += up_b;
        y = penstock::gated(gate, y, u);
      }
      const int64_t to = list ? list[row + r] : row + r;
      if (out.elem == Elem::bf16)
        y.store_n(out.row<bf16>(to) + column, columns);
      else
        y.store_n(out.row<float>(to) + column, columns);
    }
  }

  // The columns of a block's panels, of which `unit` has the first. sums_of(i) is the sums of panel
  // i, as finish() takes them.
  template <class SumsOf>
  PENSTOCK_INLINE void finish_block(int64_t unit, int panels, int64_t row, int64_t rows,
                                    SumsOf&& sums_of) const {
    for (int i = 0; i < panels; i += gated ? 2 : 1, ++unit)
      finish(sums_of(i), row, rows, unit * kPanelColumns);
  }
};

// Complete sums of a block that wait to become output. Each step of the next block takes a few of
// their rows, so that vector units work beside the tiles. (One thread, 512 rows on the 8-bit grid,
// TOP/s: 1.6 without, 3.9 with no output at all.)
struct Pending {
  int64_t unit = 0;
  int panels = 0;
  int64_t sum_rows = 0;  // of a panel's sums
  Range rows{0, 0};      // of the output, not done yet
  int64_t done = 0;

  // At most so many rows; all must be done before the next sums are stored. sums_at(panel of the
  // block, row of the output, offset, part): sums from that offset on, and so far from gate to up.
  template <class SumsAt>
  PENSTOCK_INLINE void finish(const Epilogue& e, int64_t most, SumsAt&& sums_at) {
    const int64_t some = std::min(most, rows.size());
    if (some == 0) return;
    const int64_t part = sum_rows * kPanelColumns;
    e.finish_block(unit, panels, rows.first, some, [&](int i) __attribute__((always_inline)) {
      return sums_at(i, rows.first, i * part + done * kPanelColumns, part);
    });
    rows.first += some;
    done += some;
  }
};

}  // namespace penstock
