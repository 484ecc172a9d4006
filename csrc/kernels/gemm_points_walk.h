// Products of quantized weights with activations in bfloat16, on tiles: out = x @ W^T + bias, optionally
// gated. What products are elsewhere says gemm_points_format.h.
//
// W's codes stand for whole numbers, its points, which bfloat16 holds exactly. They are expanded a
// slice of the depth at a time, to where the first cache holds it, and multiplied like weights of
// their own. The weights' scales come last: with one for a row,
//   out = (sum over k of x * point) * w_scale[n];
// with one for a group g of k,
//   out = sum over ascending groups g of w_scale[n, g] * (sum over the k of g of x * point),
// one fused multiply-add a group. Each sum is one chain of additions from zero, whose order depends
// on k alone; so the promise of gemm.h holds.
//
// The walk: for chunks of columns, for slices of the depth, for the panels
// of a block, a slice of points is expanded into L1 and used by all bands. Where rows of all the
// depth fit L2 a chunk is the panels of one block: codes are read as one stream, and sums stay in
// L1. More rows take wider chunks, so that a slice of them stays in L2 while the chunk's weights
// pass, and a chunk's sums lie in L2 beside them.
//
// The next slice is expanded beside the products with this one: the kernel's multiply(block, ahead)
// calls ahead(s) in each step, a run long.
//
// A Path of gemm_product.h, whose rows are packed. Points: PairPoints. Kernel: as in gemm_walk.h,
// without what is shared or resident.
#pragma once

#include "gemm_order.h"
#include "gemm_points_expand.h"
#include "gemm_product.h"
#include "gemm_walk.h"

namespace penstock {

// For partial sums: half of a 2 MiB L2.
constexpr int64_t kCarryBytes = 1 << 20;

template <class Kernel, class Points>
class PointsWalk {
 public:
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t row_block(const PanelView&) { return kRowBlock; }

  static int64_t ready_bytes(const PanelView& p, int64_t rows, bool) {
    return round_up(Kernel::padded_rows(std::min(rows, kRowBlock)) * p.depth * kElement, 64);
  }
  static int64_t work_bytes(const PanelView&, int64_t) {
    return 2 * kPointsBytes + 2 * kDotsBytes + kCarryBytes;
  }

  PointsWalk(const PanelView& p, const InputRows& x, const Epilogue& epilogue, Range rows, bool,
             std::byte* ready)
      : p_(p),
        x_(x),
        epilogue_(epilogue),
        rows_(rows),
        kernel_(rows.size()),
        expand_(p),
        slice_(Kernel::bands(rows.size()) <= kFewBands ? std::min(kFewSlice, kMostSlice)
                                                       : kMostSlice),
        piece_(p.scaled ? p.scaled : slice_),
        packed_(ready),
        padded_(Kernel::padded_rows(rows.size())) {}

  void make(int64_t id, int64_t count, std::byte*) const { pack(kernel_, rows_, id, count); }

  void multiply(Range units, std::byte* work) {
    points_ = work;
    dots_ = reinterpret_cast<float*>(points_ + 2 * kPointsBytes);
    carry_ = reinterpret_cast<float*>(points_ + 2 * (kPointsBytes + kDotsBytes));
    multiply(kernel_, rows_, units);
  }

 private:
  static constexpr int kBlockPanels = std::max(Kernel::kPanels, 2);
  static constexpr int64_t kElement = Kernel::kElement;
  // The points in use and as many that are being expanded must fit a 48 KiB L1. (A tile of 1 KiB
  // expanded and multiplied by one row: 12 ns within 32 KiB, 34 ns over 64 KiB.)
  static constexpr int64_t kPointsBytes = 16 << 10;
  static constexpr int64_t kMostSlice = kPointsBytes / (kBlockPanels * Points::kBytes);  // k
  // Few bands have few sums to carry from slice to slice.
  static constexpr int64_t kFewSlice = 128;
  static constexpr int64_t kFewBands = 2;
  static constexpr int64_t kDotsBytes =
      kBlockPanels * Kernel::kRows * kPanelColumns * int64_t(sizeof(float));
  static constexpr int64_t kRowsBytes = 1 << 20;  // of x that stay in a 2 MiB L2

  static_assert(kMostSlice % 128 == 0 && kFewSlice % 128 == 0, "slices are of whole groups");
  static_assert(kBlockPanels * kRowBlock * kPanelColumns * int64_t(sizeof(float)) <= kCarryBytes);

  int64_t piece_depth(int64_t k) const { return std::min(piece_, p_.depth - k); }
  // A band from column k on, where a piece of the depth begins.
  std::byte* packed(const Range& band, int64_t k) const {
    return packed_ + (padded_ * k + band.first * piece_depth(k)) * kElement;
  }

  void pack(const Kernel& kernel, Range rows, int64_t id, int64_t count) const {
    const int64_t bands = Kernel::bands(rows.size());
    const Range own = even_share(bands * ceil_div(p_.depth, piece_), id, count);
    for (int64_t i = own.first; i < own.last; ++i) {
      const int64_t k = i / bands * piece_;
      const Range band = Kernel::band(rows.size(), i % bands);
      kernel.pack(x_, rows.first + band.first, band.size(), k, piece_depth(k) / Kernel::kStep,
                  packed(band, k));
    }
  }

  void multiply(const Kernel& kernel, Range rows, Range share) {
    Order order(share, p_.per_unit, Kernel::kPanels, ceil_div(p_.depth, slice_));
    const int64_t sums =
        padded_ * order.stride * p_.per_unit * kPanelColumns * int64_t(sizeof(float));
    if (padded_ * p_.depth * kElement > kRowsBytes)
      order.wide *= std::max<int64_t>(1, kCarryBytes / sums);
    at_ = order.first();
    next_ = order.after(at_);
    const int64_t bands = Kernel::bands(rows.size());
    for (bool first = true; at_.panels; first = false) {
      later_ = order.after(next_);
      if (first) expand({0, runs(at_)}, at_, next_);
      turn_ ^= 1;
      for (int64_t b = 0; b < bands; ++b)
        band(kernel, rows, Kernel::band(rows.size(), b), order.ends(at_),
             even_share(runs(next_), b, bands));
      at_ = next_;
      next_ = later_;
    }
  }
  int64_t k_of(const Place& at) const { return at.slice * slice_; }
  int64_t depth_of(const Place& at) const { return std::min(slice_, p_.depth - k_of(at)); }
  // Of one panel; each is expanded for all panels of the place.
  int64_t runs(const Place& at) const { return at.panels ? depth_of(at) / kPointRun : 0; }

  // Some of the runs of a place; and those of the one after it are fetched.
  PENSTOCK_INLINE void expand(Range some, const Place& at, const Place& following) const {
    std::byte* const to = points_ + turn_ * kPointsBytes;
    for (int64_t i = some.first; i < some.last; ++i) {
      const int64_t k = i * kPointRun;
      for (int panel = 0; panel < at.panels; ++panel) {
        if (panel < following.panels && k_of(following) + k < p_.depth)
          expand_.fetch(p_, p_.panel(following.unit) + panel * p_.panel_bytes,
                        k_of(following) + k);
        expand_.run(p_, p_.panel(at.unit) + panel * p_.panel_bytes, k_of(at) + k,
                    to + (panel * slice_ + k) * Points::kBytes);
      }
    }
  }

  // The expanded points by one band; beside that, `ahead` of the next place's runs.
  void band(const Kernel& kernel, Range rows, Range band, bool ends, Range ahead) const {
    const Place& at = at_;
    const int64_t first = k_of(at), depth = depth_of(at);
    const int64_t each = ceil_div(ahead.size() * kPointRun, depth);
    const auto prepare = [&](int64_t k) __attribute__((always_inline)) {  // in the step of k
      const int64_t from = ahead.first + (k - first) / kPointRun * each;
      expand({from, std::min(from + each, ahead.last)}, next_, later_);
    };
    float* const sums = carry_ + ((at.unit - at.chunk) * p_.per_unit * padded_ +
                                  band.first * at.panels) * kPanelColumns;
    Block block{};
    block.rows = band.size();
    block.weights = block.near = block.far = points();
    block.panel_bytes = slice_ * Points::kBytes;
    block.panels = at.panels;
    if (p_.scaled) {
      scaled_groups(kernel, block, depth, band, sums, prepare);
    } else {
      block.activations = packed(band, first);
      block.steps = depth / Kernel::kStep;
      block.before = at.slice ? sums : nullptr;
      block.after = sums;
      multiply(kernel, block, first, prepare);
    }
    if (!ends) return;
    const int64_t panel = kernel.sum_rows(band.size()) * kPanelColumns;  // floats
    const auto finish = [&](auto&& sums_of) {
      epilogue_.finish_block(at.unit, at.panels, rows.first + band.first, band.size(), sums_of);
    };
    if (p_.scaled)
      return finish([&](int i) { return FloatSums{sums + i * panel, panel}; });
    finish([&](int i) {
      const std::byte* const own = p_.panel(at.unit) + i * p_.panel_bytes;
      return expand_.scaled(p_, own, sums + i * panel, panel);
    });
  }

  const float* scales(const std::byte* panel, int64_t k) const {
    return reinterpret_cast<const float*>(panel + p_.scales(k));
  }

  const std::byte* points() const {
    return points_ + (turn_ ^ 1) * kPointsBytes;
  }

  template <class Prepare>
  PENSTOCK_INLINE void multiply(const Kernel& kernel, const Block& block, int64_t k,
                                Prepare&& prepare) const {
    kernel.multiply(block, [&](int64_t s) { prepare(k + s * kPointRun); });
  }

  // The next group's products are begun before the sums of the one before it are scaled, so that
  // both run at once.
  template <class Prepare>
  void scaled_groups(const Kernel& kernel, Block& block, int64_t depth, Range band, float* sums,
                     Prepare&& prepare) const {
    const Place& at = at_;
    const int64_t first = k_of(at);
    const auto dots = [&](int64_t k) {
      return dots_ + k / p_.scaled % 2 * (kDotsBytes / int64_t(sizeof(float)));
    };
    block.steps = p_.scaled / Kernel::kStep;
    for (int64_t k = first; k < first + depth; k += p_.scaled) {
      block.activations = packed(band, k);
      block.weights = block.near = block.far = points() + (k - first) * Points::kBytes;
      block.after = dots(k);
      multiply(kernel, block, k, prepare);
      if (k > first) add_group(kernel, at, k - p_.scaled, band.size(), dots(k - p_.scaled), sums);
    }
    const int64_t last = first + depth - p_.scaled;
    add_group(kernel, at, last, band.size(), dots(last), sums);
  }

  void add_group(const Kernel& kernel, const Place& at, int64_t k, int64_t rows,
                 const float* dots, float* sums) const {
    const int64_t panel = kernel.sum_rows(rows) * kPanelColumns;
    for (int i = 0; i < at.panels; ++i, dots += panel, sums += panel) {
      const f32x16 scale = f32x16::load(scales(p_.panel(at.unit) + i * p_.panel_bytes, k));
      for (int64_t r = 0; r < rows * kPanelColumns; r += kPanelColumns)
        fma(scale, f32x16::load(dots + r), k ? f32x16::load(sums + r) : f32x16::zero())
            .store(sums + r);
    }
  }

  const PanelView p_;
  const InputRows x_;
  const Epilogue epilogue_;
  const Range rows_;
  const Kernel kernel_;
  const Expand<Points> expand_;
  const int64_t slice_;  // k whose points are expanded at once
  const int64_t piece_;  // k of x that are packed together: a group, or a slice
  std::byte* const packed_;
  const int64_t padded_;  // rows
  std::byte* points_ = nullptr;
  float* dots_ = nullptr;   // of two groups
  float* carry_ = nullptr;  // sums of a chunk
  Place at_{}, next_{}, later_{};
  int turn_ = 0;  // half of points_ that is filled next
};

}  // namespace penstock
