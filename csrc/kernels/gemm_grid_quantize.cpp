// From floating-point rows to the 8-bit grid. quant/grid.py is the same in NumPy, to the bit.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../simd.h"
#include "gemm_grid_blocks.h"
#include "hadamard.h"

namespace penstock {
namespace {

static_assert(kGridGroup % kLanes == 0);

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

constexpr int kRegisters = kGridGroup / kLanes;  // of a group's points

// A window as floats.
struct FitWindow {
  float step, origin;
};

// Codes less the origin, of points by a window; returns the sum of their squared errors.
float fit_codes(const f32x16* x, FitWindow w, f32x16* codes) {
  const f32x16 by = f32x16::broadcast(1.0f / w.step), step = f32x16::broadcast(w.step);
  const f32x16 first =
      f32x16::broadcast(std::fmax(-w.origin, -std::floor(128.0f / w.step)));
  const f32x16 last =
      f32x16::broadcast(std::fmin(15.0f - w.origin, std::floor(127.0f / w.step)));
  f32x16 squares[kRegisters];
  for (int i = 0; i < kRegisters; ++i) {
    codes[i] = max(first, min(last, round_even(x[i] * by)));
    const f32x16 error = x[i] - codes[i] * step;
    squares[i] = error * error;
  }
  for (int i = 1; i < kRegisters; ++i) squares[0] += squares[i];
  return hsum(squares[0]);
}

// The best of the nine windows that quant/grid.py describes. (Least error of many more windows is 0.1 %
// less. Of Gaussian values, the mean squared error of groups of 32 is 6.3 thousandths of the mean
// square and that of groups of 16 is 4.6; blocks of Q4_0 and Q4_K have 7.4 and 5.1.)
void fit_group(const f32x16* x, int8_t* codes, uint8_t& window) {
  f32x16 least = x[0], most = x[0];
  for (int i = 1; i < kRegisters; ++i) least = min(least, x[i]), most = max(most, x[i]);
  const float low = std::fmin(hmin(least), 0.0f), high = std::fmax(hmax(most), 0.0f);
  const float span = high - low;
  const float middle = span > 0 ? std::nearbyint(-low * 15.0f / span) : 8.0f;
  float smallest = std::numeric_limits<float>::infinity();
  f32x16 best[kRegisters];
  FitWindow chosen{1, 8};
  for (const float further : {-1.0f, 0.0f, 1.0f}) {
    const float origin = std::fmin(std::fmax(middle + further, 1.0f), 14.0f);
    const float reaching = std::fmax(-low / origin, high / (15.0f - origin));
    const float cover = std::fmin(std::fmax(std::ceil(reaching), 1.0f), 16.0f);
    for (const float finer : {0.0f, 1.0f, 2.0f}) {
      const FitWindow w{std::fmax(cover - finer, 1.0f), origin};
      f32x16 by_this[kRegisters];
      const float error = fit_codes(x, w, by_this);
      if (!(error < smallest)) continue;
      smallest = error;
      chosen = w;
      for (int i = 0; i < kRegisters; ++i) best[i] = by_this[i];
    }
  }
  alignas(64) float values[kGridGroup];
  const f32x16 origin = f32x16::broadcast(chosen.origin);
  for (int i = 0; i < kRegisters; ++i) (best[i] + origin).store(values + i * kLanes);
  for (int64_t j = 0; j < kGridGroup; ++j) codes[j] = int8_t(values[j]);
  window = uint8_t(int(chosen.step) - 1 + 16 * int(chosen.origin));
}

}  // namespace

bool quantize_grid_row(int bits, Elem elem, bool transformed, const std::byte* row, int64_t k,
                       int8_t* codes, uint8_t* windows, float& scale,
                       std::vector<float>& scratch) {
  const int64_t padded = round_up(k, kGridGroup);
  scratch.assign(size_t(padded), 0.0f);
  float* const x = scratch.data();
  widen(elem, row, k, x);
  if (transformed) hadamard_row(x, k, 1.0f, x);
  const float most = magnitude(x, padded);
  scale = most / 127.0f;
  const bool finite = most == most;
  if (!(scale >= std::numeric_limits<float>::min())) {
    scale = 0;
    std::fill(codes, codes + k, int8_t(0));
    if (windows) std::fill(windows, windows + padded / kGridGroup, uint8_t(0));
    return finite;
  }
  const f32x16 by = f32x16::broadcast(scale);
  const f32x16 limit = f32x16::broadcast(127.0f), low = f32x16::broadcast(-127.0f);
  alignas(64) int8_t group[kGridGroup];
  for (int64_t g = 0; g < padded / kGridGroup; ++g) {
    const int64_t first = g * kGridGroup;
    f32x16 on_grid[kRegisters];
    for (int i = 0; i < kRegisters; ++i) on_grid[i] = f32x16::load(x + first + i * kLanes) / by;
    if (bits == 4) {
      fit_group(on_grid, group, windows[g]);
    } else {
      alignas(64) float values[kGridGroup];
      for (int i = 0; i < kRegisters; ++i)
        max(low, min(limit, round_even(on_grid[i]))).store(values + i * kLanes);
      for (int64_t j = 0; j < kGridGroup; ++j) group[j] = int8_t(values[j]);
    }
    std::copy(group, group + std::min(kGridGroup, k - first), codes + first);
  }
  return finite;
}

}  // namespace penstock
