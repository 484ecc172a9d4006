// From floating-point rows to the 8-bit grid. quant/grid.py is the same in NumPy, to the bit.
#include <cmath>
#include <cstring>
#include <vector>

#include "../simd.h"
#include "gemm_grid_blocks.h"

namespace penstock {
namespace {

constexpr int64_t kLanes = f32x16::lanes;
static_assert(kGridGroup == 2 * kLanes);

// Rows may lie at odd addresses (a view into a file).
template <class T>
void widen_as(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * int64_t(sizeof(T)), sizeof(T));
    to[i] = to_f32(value);
  }
}

void widen(Elem elem, const std::byte* from, int64_t count, float* to) {
  if (elem == Elem::f32) widen_as<float>(from, count, to);
  if (elem == Elem::bf16) widen_as<bf16>(from, count, to);
  if (elem == Elem::f16) widen_as<f16>(from, count, to);
}

float hmin(f32x16 a) { return -hmax(f32x16::zero() - a); }

// Largest magnitude; NaN if a value is not finite.
float magnitude(const float* row, int64_t padded) {
  f32x16 most = f32x16::zero(), nothing = f32x16::zero();
  for (int64_t i = 0; i < padded; i += kLanes) {
    const f32x16 v = f32x16::load(row + i);
    most = max(abs(v), most);
    nothing = fma(v, f32x16::zero(), nothing);
  }
  return hmax(most) + hsum(nothing);
}

// Of 16 codes one more lies on one side of the origin than on the other: the side of the value of
// largest magnitude, which becomes that outermost code. (Windows of less squared error, with other
// origins and finer steps, cost the demo models more loss: what is largest matters most.)
void fit_group(const f32x16* x, int8_t* codes, uint8_t& window) {
  const float low = hmin(min(x[0], x[1])), high = hmax(max(x[0], x[1]));
  const bool up = high > -low;
  const float step = std::fmin(std::fmax(std::ceil((up ? high : -low) / 8.0f), 1.0f), 15.0f);
  const float origin = up ? 7.0f : 8.0f;
  const f32x16 s = f32x16::broadcast(step), z = f32x16::broadcast(origin);
  const f32x16 most = f32x16::broadcast(15.0f);
  alignas(64) float values[kGridGroup];
  for (int i = 0; i < 2; ++i)
    max(f32x16::zero(), min(most, round_even(x[i] / s) + z)).store(values + i * kLanes);
  for (int64_t j = 0; j < kGridGroup; ++j) codes[j] = int8_t(values[j]);
  window = uint8_t(int(step) - 1 + 16 * int(origin));
}

}  // namespace

bool quantize_grid_row(int bits, Elem elem, const std::byte* row, int64_t k, int8_t* codes,
                       uint8_t* windows, float& scale, std::vector<float>& scratch) {
  const int64_t padded = round_up(k, kGridGroup);
  scratch.assign(size_t(padded), 0.0f);
  float* const x = scratch.data();
  widen(elem, row, k, x);
  const float most = magnitude(x, padded);
  scale = most / (bits == 8 ? 127.0f : kWindowReach);
  const bool finite = most == most;
  if (!(scale >= std::numeric_limits<float>::min())) {
    scale = 0;
    std::fill(codes, codes + k, int8_t(0));
    if (windows) std::fill(windows, windows + padded / kGridGroup, uint8_t(0));
    return finite;
  }
  const f32x16 by = f32x16::broadcast(scale);
  alignas(64) int8_t group[kGridGroup];
  for (int64_t g = 0; g < padded / kGridGroup; ++g) {
    const int64_t first = g * kGridGroup;
    const f32x16 on_grid[2] = {f32x16::load(x + first) / by, f32x16::load(x + first + kLanes) / by};
    if (bits == 4) {
      fit_group(on_grid, group, windows[g]);
    } else {
      alignas(64) float values[kGridGroup];
      const f32x16 limit = f32x16::broadcast(127.0f), low = f32x16::broadcast(-127.0f);
      for (int i = 0; i < 2; ++i)
        max(low, min(limit, round_even(on_grid[i]))).store(values + i * kLanes);
      for (int64_t j = 0; j < kGridGroup; ++j) group[j] = int8_t(values[j]);
    }
    std::copy(group, group + std::min(kGridGroup, k - first), codes + first);
  }
  return finite;
}

}  // namespace penstock
