// The walk over rows, slices and panels of weights in floating point. README.md defines the words.
//
// A Path of gemm_product.h. Few rows are packed slice by slice, by each thread for itself; rows whose products are taken
// in small pieces keep all slices, so that no piece packs them anew.
//
// A Kernel knows one pair of element formats and provides
//   kPanels                     panels of a full block of accumulators; panels(rows, tuning): those of a
//                               block where there are so many rows in all
//   kRows                       rows of a band, at most
//   kElement                    bytes of a packed activation
//   kStep                       k per step of the innermost loop
//   bounds(tuning)              CacheBounds
//   streams(rows, tuning)       whether weights that so many rows use are limited by memory: the first
//                               band prefetches some way ahead and so streams at
//                               full speed. With more rows arithmetic takes most of the time, and each
//                               band prefetches its share of the next weights while it runs
//   ahead(rows, tuning)         how far, in each panel of a block
//   kSharedSlice                k per slice when many rows are packed once; not every kernel has it
//   padded_rows(rows)           rows as packed
//   bands(rows, tuning)         how many bands so many rows are; band(rows, b, tuning) is the b-th's Range
//   Kernel(rows, tuning)        constructor, per row block: sets up tile registers
//   sum_rows(rows)              rows of a band's partial sums
//   pack(x, first, rows, k, steps, to)
//                               so many steps of a band from column k on, zeros beyond x.cols
//   multiply(block)
//   multiply_resident(block, meanwhile)
//                               with kSharedSlice: the same result; meanwhile(rows) is called as
//                               it goes, for all of a band's rows before `after` is written
#pragma once

#include <utility>

#include "gemm_order.h"
#include "gemm_product.h"

namespace penstock {

// One block of accumulators: a band by the columns of `panels` panels.
struct Block {
  const std::byte* activations;  // the band's, as packed
  int64_t rows;
  const std::byte* weights;  // first of this slice, in the first panel
  int64_t panel_bytes;
  int panels;
  int64_t steps;
  const float* before;  // partial sums [panels][sum_rows][16]; null: zero
  float* after;         // likewise, and may be `before`

  // With shared packing only, to prefetch: partial sums of the next block and, when the sums are
  // then complete, the rows that they go to (else null).
  const float* next;
  const std::byte* out;
  int64_t out_row_bytes;

  // Weights to prefetch in step s, as the address that corresponds to `weights` in that step:
  // `near` up to step `turn`, then `far`.
  const std::byte* near;
  const std::byte* far;
  int64_t turn;
  bool streams;      // whether this band prefetches all of them
  Range lines;       // this band's share of each KiB, in cache lines
  Range next_lines;  // and of a panel's next weights, from `far` on
};

// With more bands than this activations are packed once and shared. (Two threads, the products of
// a model of 1B parameters: 4 bands 1.24 to 1.67 TFLOP/s packed by each, 1.13 to 1.51 shared; 16
// bands 1.13 to 1.87 and 1.90 to 2.44.)
constexpr int64_t kPrivateBands = 4;

template <class Kernel>
class Walk {
 public:
  static constexpr bool kShares = requires { Kernel::kSharedSlice; };
  static constexpr int64_t kOwnRows = kShares ? kPrivateBands * Kernel::kRows : kAllRows;
  static int64_t row_block(const Panels& p) { return Kernel::bounds(p.tuning).row_block; }

  // Shared, all of a row block; else a slice, or of few rows all slices.
  static int64_t ready_bytes(const Panels& p, int64_t rows, bool shared) {
    const int64_t padded = Kernel::padded_rows(std::min(rows, row_block(p)));
    if (shared) return padded * p.depth * Kernel::kElement;
    const CacheBounds bounds = Kernel::bounds(p.tuning);
    const int64_t column = round_up(p.depth, 32) * Kernel::kElement;
    const int64_t kept = Kernel::padded_rows(std::min(rows, kRowsOfSmallPieces)) * column;
    const int64_t slice = std::max(bounds.slice, padded * 32 * Kernel::kElement);
    return round_up(std::max(kept, std::min(padded * column, slice)), 64);
  }
  static int64_t work_bytes(const Panels& p, int64_t rows) {
    const bool cut = rows > kOwnRows || p.depth > longest(p, std::min(rows, row_block(p)));
    return kHotBytes + (cut ? p.tuning.carry_bytes : 0);
  }

  Walk(const Panels& p, const InputRows& x, const Epilogue& epilogue, Range rows, bool shared,
       std::byte* ready)
      : p_(p),
        x_(x),
        epilogue_(epilogue),
        rows_(rows),
        kernel_(rows.size(), p_.tuning),
        padded_(Kernel::padded_rows(rows.size())),
        shared_(shared),
        packed_(ready) {}

  // By each thread for itself slices are packed one by one, when they are multiplied.
  void make([[maybe_unused]] int64_t id, [[maybe_unused]] int64_t count, std::byte*) const {
    if (!shared_) return;
    const Blocking by = shared_blocking(0);
    const int64_t bands = Kernel::bands(rows_.size(), p_.tuning);
    const Range own = even_share(bands * by.slices, id, count);
    for (int64_t i = own.first; i < own.last; ++i)
      pack(kernel_, rows_, by, i / bands, i % bands,
           packed_ + padded_ * (i / bands) * by.slice * Kernel::kElement);
  }

  void multiply(Range share, std::byte* work) {
    if constexpr (kShares)
      if (shared_)
        return multiply<true>(kernel_, rows_, share, shared_blocking(share.size()), packed_, work);
    const Blocking by = slices_of(padded_, p_.depth, longest(p_, rows_.size()), share.size(),
                                  p_.per_unit, p_.tuning.carry_bytes);
    multiply<false>(kernel_, rows_, share, by, packed_, work);
  }

 private:
  static constexpr int kBlockPanels = std::max(Kernel::kPanels, 2);
  static constexpr int64_t kHotBytes =
      kBlockPanels * Kernel::kRows * kPanelColumns * int64_t(sizeof(float));

  // k of a slice where a thread packs so many rows for itself. Fewer of them have no less.
  static int64_t longest(const Panels& p, int64_t rows) {
    const CacheBounds bounds = Kernel::bounds(p.tuning);
    const int64_t k = bounds.slice / (Kernel::padded_rows(rows) * Kernel::kElement);
    const int64_t of_weights = Kernel::streams(rows, p.tuning) ? k : bounds.panel / p.k_bytes;
    return std::max<int64_t>(std::min(k, of_weights) / 32 * 32, 32);
  }

  // Of a share of so many units.
  Blocking shared_blocking(int64_t units) const {
    int64_t slice = 0;
    if constexpr (kShares) slice = Kernel::kSharedSlice;
    return slices_of(padded_, p_.depth, slice, units, p_.per_unit, p_.tuning.carry_bytes);
  }

  int64_t steps_of(const Blocking& by, int64_t slice) const {
    return ceil_div(std::min(by.slice, p_.depth - slice * by.slice), Kernel::kStep);
  }

  // Band b of a slice of the rows, among that slice's from `to` on.
  void pack(const Kernel& kernel, Range rows, const Blocking& by, int64_t slice, int64_t b,
            std::byte* to) const {
    const int64_t steps = steps_of(by, slice);
    const Range band = Kernel::band(rows.size(), b, p_.tuning);
    kernel.pack(x_, rows.first + band.first, band.size(), slice * by.slice, steps,
                to + band.first * steps * Kernel::kStep * Kernel::kElement);
  }

  // Resident: activations packed once, and the panels of a block meant to stay in L1. Else a slice
  // of them is packed where a chunk begins with it.
  template <bool Resident>
  void multiply(const Kernel& kernel, Range rows, Range share, const Blocking& by,
                std::byte* packed, std::byte* carry) {
    const int64_t padded = Kernel::padded_rows(rows.size());
    const int64_t bands = Kernel::bands(rows.size(), p_.tuning);
    const bool streaming = Kernel::streams(rows.size(), p_.tuning);
    const bool keeps = rows.size() <= kRowsOfSmallPieces;
    const int64_t step_bytes = p_.k_bytes * Kernel::kStep;
    float* const hot =
        reinterpret_cast<float*>(carry + (by.slices > 1 ? p_.tuning.carry_bytes : 0));
    Order order(share, p_.per_unit, Kernel::panels(rows.size(), p_.tuning), by.slices);
    order.wide = by.chunk;
    Pending pending;
    const auto finish = [&](int64_t most) __attribute__((always_inline)) {
      pending.finish(epilogue_, most, [&](int, int64_t, int64_t at, int64_t part) {
        return FloatSums{hot + at, part};
      });
    };
    for (Place at = order.first(); at.panels; at = order.after(at)) {
      const int64_t k = at.slice * by.slice;
      const int64_t steps = steps_of(by, at.slice);
      const int64_t row_bytes = steps * Kernel::kStep * Kernel::kElement;
      const bool ends = order.ends(at);
      std::byte* const x = packed + (Resident || keeps ? padded * k * Kernel::kElement : 0);
      if (!Resident && at.unit == at.chunk && (keeps ? in_scratch_ < at.slice : in_scratch_ != at.slice)) {
        for (int64_t b = 0; b < bands; ++b) pack(kernel, rows, by, at.slice, b, x);
        in_scratch_ = at.slice;
      }
      Block block;
      block.panels = at.panels;
      block.panel_bytes = p_.panel_bytes;
      block.weights = p_.data + at.unit * p_.per_unit * p_.panel_bytes + k * p_.k_bytes;
      block.steps = steps;
      const std::byte* next = block.weights + at.panels * p_.panel_bytes;
      if (streaming) {
        const int64_t bytes = Kernel::ahead(rows.size(), p_.tuning);
        const int64_t ahead = std::min(steps, ceil_div(bytes, step_bytes));
        block.turn = steps - ahead;
        block.near = block.weights + ahead * step_bytes;
        block.far = next - block.turn * step_bytes;
      } else {
        block.turn = 0;
        block.near = block.far = next;
      }
      float* const partial = reinterpret_cast<float*>(carry) +
                             (at.unit - at.chunk) * p_.per_unit * padded * kPanelColumns;
      for (int64_t b = 0; b < bands; ++b) {
        const Range band = Kernel::band(rows.size(), b, p_.tuning);
        float* own = partial + band.first * block.panels * kPanelColumns;
        block.activations = x + band.first * row_bytes;
        block.rows = band.size();
        block.before = at.slice == 0 ? nullptr : own;
        block.after = ends ? hot : own;
        block.streams = streaming && b == 0;
        block.lines = streaming ? Range{0, b == 0 ? 16 : 0} : even_share(16, b, bands);
        block.next_lines = even_share(steps * step_bytes / kLineBytes, b, bands);
        if constexpr (Resident) {
          const Array& out = epilogue_.out;
          const int64_t element = int64_t(elem_bytes(out.elem));
          block.next = own + Kernel::kRows * block.panels * kPanelColumns;
          block.out_row_bytes = out.stride * element;
          block.out = ends ? out.data + (rows.first + band.first) * block.out_row_bytes +
                                 at.unit * kPanelColumns * element
                           : nullptr;
          kernel.multiply_resident(block, finish);
        } else {
          kernel.multiply(block);
        }
        if (!ends) continue;
        pending = {at.unit, at.panels, kernel.sum_rows(block.rows),
                   {rows.first + band.first, rows.first + band.last}};
        if constexpr (!Resident) finish(block.rows);
      }
    }
    finish(pending.rows.size());
  }

  const Panels p_;
  const InputRows x_;
  const Epilogue epilogue_;
  const Range rows_;
  const Kernel kernel_;
  const int64_t padded_;  // rows
  const bool shared_;
  std::byte* const packed_;
  int64_t in_scratch_ = -1;  // the slice that a thread has packed for itself last; the first ones are kept, or none
};

}  // namespace penstock
