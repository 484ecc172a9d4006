// The walk over rows, slices and panels that every kernel shares; see Blocking for its loops.
//
// A Kernel knows one pair of element formats and provides
//   kPanels                     panels of a full block of accumulators
//   kElement                    bytes of a packed activation
//   kStep                       k per step of the innermost loop
//   kSharedSlice                for run_shared(): k per slice when many rows are packed once
//   padded_rows(rows)           rows as packed
//   groups(rows)                groups of rows; group(rows, g) is the g-th's Range
//   kernel(rows)                constructor, per block of rows: sets up tile registers
//   sum_rows(rows)              rows of a group's partial sums
//   pack(x, first, rows, k, depth, to)
//                               columns [k, k + depth) of a group of rows, zeros beyond x.cols
//   multiply(block)
//   multiply_resident(block, meanwhile)
//                               with kSharedSlice: the same result; meanwhile(rows) is called as
//                               it goes, for all of a group's rows before `after` is written
#pragma once

#include "../pool.h"
#include "gemm_blocks.h"
#include "gemm_epilogue.h"

namespace penstock {

// One block of accumulators: a group of rows by the columns of `panels` panels.
struct Block {
  const std::byte* activations;  // the group's, as packed
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
  Range next_lines;  // this group's share of a panel's next weights, from `far` on, in cache lines

  // Weights to prefetch in step s, as the address that corresponds to `weights` in that step:
  // `near` up to step `turn`, then `far`.
  const std::byte* near;
  const std::byte* far;
  int64_t turn;
  Range lines;  // this group's share of each KiB, in cache lines
};

// Weights that few groups of rows use are limited by memory: the first group prefetches a short
// way ahead (DenseTuning::stream_ahead) and so streams at full speed. With more groups arithmetic
// takes most of the time, and each prefetches its share of the next weights while it runs. (One
// thread, K = 2048: at 2 groups 0.51 TFLOP/s against 0.46 with shares, at 4 groups 0.69 against
// 0.75.)
constexpr int64_t kStreamingGroups = 2;

// With more groups than this activations are packed once and shared. (Two threads, the products of
// a model of 1B parameters: 4 groups 1.24 to 1.67 TFLOP/s packed by each, 1.13 to 1.51 shared; 16
// groups 1.13 to 1.87 and 1.90 to 2.44.)
constexpr int64_t kPrivateGroups = 4;

template <class Kernel>
class Walk {
 public:
  static int64_t scratch_bytes(const Panels& p, int64_t rows) {
    const int64_t padded = Kernel::padded_rows(std::min(rows, kRowBlock));
    return round_up(activation_bytes(padded, p.depth, Kernel::kElement), 64) +
           carry_bytes(padded, p.depth, Kernel::kElement, p.tuning.carry_bytes) + kHotBytes;
  }

  // For run_shared(): on each thread, and shared.
  static int64_t private_bytes(const Panels& p, int64_t rows) {
    const int64_t few = scratch_bytes(p, std::min(rows, kPrivateGroups * Kernel::kRows));
    return shares(rows) ? std::max(few, p.tuning.carry_bytes + kHotBytes) : few;
  }
  static int64_t shared_bytes(const Panels& p, int64_t rows) {
    if (!shares(rows)) return 0;
    return Kernel::padded_rows(std::min(rows, kRowBlock)) * p.depth * Kernel::kElement;
  }

  Walk(const Panels& p, const Array& x, const Epilogue& epilogue, std::byte* scratch)
      : p_(p), x_(x), epilogue_(epilogue), scratch_(scratch) {}

  // Output columns of the units in `share`, for all rows.
  void run(int64_t rows, Range share) {
    const int64_t blocks = ceil_div(rows, kRowBlock);
    for (int64_t b = 0; b < blocks; ++b) row_block(even_share(rows, b, blocks), share);
  }

  // As run() for the share of `worker`, on every thread. Many rows are packed once by all threads,
  // few by each for itself, which is less than waiting for the others.
  void run_shared(int64_t rows, std::byte* shared, const Worker& worker) {
    const Range share = even_share(p_.units, worker.id, worker.count);
    if (!shares(rows)) return share.size() ? run(rows, share) : void();
    const int64_t blocks = ceil_div(rows, kRowBlock);
    for (int64_t b = 0; b < blocks; ++b) {
      if (b) worker.barrier->wait(worker);  // before what others may still read is written over
      shared_block(even_share(rows, b, blocks), share, shared, worker);
    }
  }

 private:
  static constexpr int kGroupPanels = std::max(Kernel::kPanels, 2);
  static constexpr int64_t kHotBytes =
      kGroupPanels * Kernel::kRows * kPanelColumns * int64_t(sizeof(float));

  void row_block(Range rows, Range share) {
    const int64_t padded = Kernel::padded_rows(rows.size());
    const Blocking blocks =
        blocking(padded, p_.depth, Kernel::kElement, share.size(), p_.per_unit,
                 p_.tuning.carry_bytes);
    float* carry = reinterpret_cast<float*>(
        scratch_ + round_up(activation_bytes(padded, p_.depth, Kernel::kElement), 64));
    const Kernel kernel(rows.size());
    for (int64_t first = share.first; first < share.last; first += blocks.chunk) {
      const Range chunk{first, std::min(first + blocks.chunk, share.last)};
      for (int64_t s = 0; s < blocks.slices; ++s) slice(kernel, rows, chunk, blocks, s, carry);
    }
  }

  static constexpr bool shares(int64_t rows) {
    return Kernel::groups(rows) > kPrivateGroups;
  }

  void shared_block(Range rows, Range share, std::byte* shared, const Worker& worker) {
    const Kernel kernel(rows.size());
    const int64_t padded = Kernel::padded_rows(rows.size());
    const Blocking blocks =
        slices_of(padded, p_.depth, Kernel::kSharedSlice, share.size(), p_.per_unit,
                  p_.tuning.carry_bytes);
    const int64_t groups = Kernel::groups(rows.size());
    const Range own = even_share(groups * blocks.slices, worker.id, worker.count);
    for (int64_t i = own.first; i < own.last; ++i) {
      const int64_t k = i / groups * blocks.slice;
      const Range group = Kernel::group(rows.size(), i % groups);
      const int64_t steps = ceil_div(std::min(blocks.slice, p_.depth - k), Kernel::kStep);
      kernel.pack(x_, rows.first + group.first, group.size(), k, steps,
                  shared + (padded * k + group.first * steps * Kernel::kStep) * Kernel::kElement);
    }
    worker.barrier->wait(worker);
    float* carry = reinterpret_cast<float*>(scratch_);
    for (int64_t first = share.first; first < share.last; first += blocks.chunk) {
      const Range chunk{first, std::min(first + blocks.chunk, share.last)};
      for (int64_t s = 0; s < blocks.slices; ++s)
        multiply_slice<true>(kernel, rows, chunk, blocks, s,
                             shared + padded * s * blocks.slice * Kernel::kElement, carry);
    }
  }

  // One slice of the depth, for all groups of panels in a chunk and all groups of rows.
  void slice(const Kernel& kernel, Range rows, Range chunk, const Blocking& blocks, int64_t s,
             float* carry) {
    const int64_t k = s * blocks.slice;
    const int64_t steps = ceil_div(std::min(blocks.slice, p_.depth - k), Kernel::kStep);
    for (int64_t g = 0; g < Kernel::groups(rows.size()); ++g) {
      const Range group = Kernel::group(rows.size(), g);
      kernel.pack(x_, rows.first + group.first, group.size(), k, steps,
                  scratch_ + group.first * steps * Kernel::kStep * Kernel::kElement);
    }
    multiply_slice<false>(kernel, rows, chunk, blocks, s, scratch_, carry);
  }

  // Resident: activations packed once, and each group of panels meant to stay in L1.
  template <bool Resident>
  void multiply_slice(const Kernel& kernel, Range rows, Range chunk, const Blocking& blocks,
                      int64_t s, const std::byte* packed, float* carry) {
    const int64_t k = s * blocks.slice;
    const int64_t depth = std::min(blocks.slice, p_.depth - k);
    const int64_t steps = ceil_div(depth, Kernel::kStep);
    const bool is_first = s == 0;
    const bool is_last = s + 1 == blocks.slices;
    const int64_t groups = Kernel::groups(rows.size());
    const bool streaming = groups <= kStreamingGroups;
    const int64_t row_bytes = steps * Kernel::kStep * Kernel::kElement;

    const int64_t carried = p_.tuning.carry_bytes / int64_t(sizeof(float));
    float* const hot = carry + (blocks.slices > 1 ? carried : 0);
    const int64_t padded = Kernel::padded_rows(rows.size());
    const int64_t step_bytes = p_.row_bytes * Kernel::kStep;
    const int64_t ahead = std::min(steps, ceil_div(p_.tuning.stream_ahead, step_bytes));
    const int64_t stride = std::max<int64_t>(1, Kernel::kPanels / p_.per_unit);  // units
    const std::byte* weights = p_.data + k * p_.row_bytes;
    Pending pending{};
    for (int64_t unit = chunk.first; unit < chunk.last; unit += stride) {
      Block block;
      const int64_t units = std::min(stride, chunk.last - unit);
      const int64_t first_panel = unit * p_.per_unit;
      block.panels = int(units * p_.per_unit);
      block.panel_bytes = p_.panel_bytes;
      block.weights = weights + first_panel * p_.panel_bytes;
      block.steps = steps;
      const std::byte* next = weights + (first_panel + block.panels) * p_.panel_bytes;
      if (streaming) {
        block.turn = steps - ahead;
        block.near = block.weights + ahead * step_bytes;
        block.far = next - block.turn * step_bytes;
      } else {
        block.turn = 0;
        block.near = block.far = next;
      }
      float* const partial = carry + (unit - chunk.first) * p_.per_unit * padded * kPanelColumns;
      for (int64_t g = 0; g < groups; ++g) {
        const Range group = Kernel::group(rows.size(), g);
        float* own = partial + group.first * block.panels * kPanelColumns;
        block.activations = packed + group.first * row_bytes;
        block.rows = group.size();
        block.before = is_first ? nullptr : own;
        block.after = is_last ? hot : own;
        block.lines = streaming ? Range{0, g == 0 ? 16 : 0} : even_share(16, g, groups);
        if constexpr (Resident) {
          const Array& out = epilogue_.out;
          block.next_lines = even_share(steps * step_bytes / 64, g, groups);
          const int64_t element = int64_t(elem_bytes(out.elem));
          block.next = own + Kernel::kRows * block.panels * kPanelColumns;
          block.out_row_bytes = out.stride * element;
          block.out = is_last ? out.data + (rows.first + group.first) * block.out_row_bytes +
                                    unit * kPanelColumns * element
                              : nullptr;
          kernel.multiply_resident(block, [&](int64_t most) __attribute__((always_inline)) {
            finish(pending, most);
          });
        } else {
          kernel.multiply(block);
        }
        if (!is_last) continue;
        pending = {hot,      kernel.sum_rows(block.rows),    block.panels,
                   unit,     {rows.first + group.first, rows.first + group.last}};
        if constexpr (!Resident) finish(pending, block.rows);
      }
    }
    finish(pending, pending.rows.size());
  }

  // Complete sums that wait to become output. With shared packing each step of the next block takes
  // a few of their rows, so that vector units work beside the tiles.
  struct Pending {
    const float* sums;
    int64_t sum_rows;  // of a panel's sums
    int panels;
    int64_t unit;
    Range rows;  // of the output, not done yet
  };

  PENSTOCK_INLINE void finish(Pending& p, int64_t most) const {
    const int64_t rows = std::min(most, p.rows.size());
    if (rows == 0) return;
    const int64_t panel = p.sum_rows * kPanelColumns;  // floats
    for (int i = 0; i < p.panels; i += p_.per_unit)
      epilogue_.finish(FloatSums{p.sums + i * panel, panel}, p.rows.first, rows,
                       (p.unit + i / p_.per_unit) * kPanelColumns);
    p.sums += rows * kPanelColumns;
    p.rows.first += rows;
  }

  Panels p_;
  Array x_;
  Epilogue epilogue_;
  std::byte* scratch_;
};

}  // namespace penstock
