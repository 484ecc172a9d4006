// Products of weights in blocks: the walk, for every Operand. A Path of gemm_product.h.
//
// For few bands of rows codes become weights in the registers that multiply them, and a panel is read
// as one stream. For more a slice of the depth of a block's panels is expanded into L1 first, and all
// bands take it from there; their sums wait in the carry.
#pragma once

#include "gemm_block_operands.h"
#include "gemm_epilogue.h"
#include "gemm_int_quantize.h"
#include "gemm_order.h"
#include "gemm_panels.h"
#include "gemm_product.h"

namespace penstock {

// Rows of x made ready. A row holds its k; for rounded ones then the scale of each group of the
// weights; then for each of these what is added of x: where groups have a least value x's sum
// (float), else for rounded ones what its dot starts from (int32). Rows lie an odd number of cache
// lines apart.
struct BlockRows {
  std::byte* data;
  int64_t scales_at, shifts_at, row_bytes;

  template <class Operand>
  static BlockRows of(const PanelView& p, std::byte* memory) {
    const int64_t scales = p.depth * Operand::kElement;
    const int64_t shifts = scales + (Operand::kRounded ? p.groups() * 4 : 0);
    const int64_t bytes = round_up(shifts + p.groups() * 4, kLineBytes);
    return {memory, scales, shifts, bytes / kLineBytes % 2 ? bytes : bytes + kLineBytes};
  }

  std::byte* row(int64_t r) const { return data + r * row_bytes; }
  float* scales(int64_t r) const { return reinterpret_cast<float*>(row(r) + scales_at); }
  float* sums(int64_t r) const { return reinterpret_cast<float*>(row(r) + shifts_at); }
  int32_t* starts(int64_t r) const { return reinterpret_cast<int32_t*>(row(r) + shifts_at); }
};

// What one call of a kernel multiplies: rows from `row` on by panels side by side, from column k on.
struct BlockJob {
  const BlockRows& x;
  int64_t row;
  int64_t k;
  const std::byte* weights;
  int64_t panel_bytes;
  int64_t runs;        // of 32 k
  int64_t ahead;       // how far weights are prefetched, or 0
  bool begun;          // sums has those of the k before
  float* sums;         // [panel][row][16]
};
using BlockKernel = void (*)(const BlockJob&);

// Weights as a Format has them.
template <class Format, class Operand>
struct DirectWeights {
  static constexpr int64_t kGroup = Format::kGroup;
  static constexpr bool kLeast = Format::kLeast, kWide = Format::kWide;
  static constexpr int64_t kRuns = Format::kSegment / kRunK;  // of a segment
  static constexpr int64_t kBytes = Format::kSegmentBytes;

  static PENSTOCK_INLINE Operand::Weights step(const std::byte* segment, int64_t run, int step) {
    Quad codes[Operand::kQuads];
    for (int i = 0; i < Operand::kQuads; ++i)
      codes[i] = Operand::kLoose ? Format::loose_quad(segment, run, step * Operand::kQuads + i)
                                 : Format::quad(segment, run, step * Operand::kQuads + i);
    return Operand::template decode<Format>(codes);
  }
  static PENSTOCK_INLINE f32x16 scale(const std::byte* segment, int64_t group) {
    return Format::scale(segment, group);
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte* segment, int64_t group) {
    return Format::least(segment, group);
  }
};

// And expanded, a run at a time: its steps, then scales, then least values in float32.
template <class Operand, int64_t Group, bool Least, bool Wide>
struct ExpandedWeights {
  static constexpr int64_t kGroup = Group, kGroups = kRunK / Group;
  static constexpr bool kLeast = Least, kWide = Wide;
  static constexpr int64_t kRuns = 1;
  static constexpr int64_t kSteps = kRunQuads / Operand::kQuads;
  static constexpr int64_t kScalesAt = kSteps * Operand::kStepBytes;
  static constexpr int64_t kLeastsAt = kScalesAt + kGroups * kScaleBytes;
  static constexpr int64_t kBytes = kLeastsAt + (Least ? kGroups * kScaleBytes : 0);

  static PENSTOCK_INLINE Operand::Weights step(const std::byte* run, int64_t, int step) {
    return Operand::Weights::load(run + step * Operand::kStepBytes);
  }
  static PENSTOCK_INLINE f32x16 scale(const std::byte* run, int64_t group) {
    return f32x16::load(reinterpret_cast<const float*>(run + kScalesAt) + group * kPanelColumns);
  }
  static PENSTOCK_INLINE f32x16 least(const std::byte* run, int64_t group) {
    return f32x16::load(reinterpret_cast<const float*>(run + kLeastsAt) + group * kPanelColumns);
  }
};
template <class Format, class Operand>
using Expanded =
    ExpandedWeights<Operand, Format::kGroup, Format::kLeast, Format::kWide && kSignedBytes>;

// Runs of a panel, from a whole segment on.
template <class Format, class Operand>
void expand_runs(const std::byte* segment, int64_t runs, int64_t ahead, std::byte* to) {
  using From = DirectWeights<Format, Operand>;
  using To = Expanded<Format, Operand>;
  constexpr int64_t per_run = From::kBytes / From::kRuns;
  for (int64_t i = 0; i < runs; ++i, to += To::kBytes) {
    const int64_t run = i % From::kRuns;
    if (i && run == 0) segment += From::kBytes;
    for (int64_t at = 0; at < per_run; at += kLineBytes)
      __builtin_prefetch(segment + ahead + run * per_run + at, 0, 2);
#pragma GCC unroll 8
    for (int s = 0; s < int(To::kSteps); ++s)
      From::step(segment, run, s).store(to + s * Operand::kStepBytes);
    for (int64_t g = 0; g < To::kGroups; ++g) {
      float* const scales = reinterpret_cast<float*>(to + To::kScalesAt) + g * kPanelColumns;
      From::scale(segment, run * To::kGroups + g).store(scales);
      if constexpr (To::kLeast)
        From::least(segment, run * To::kGroups + g).store(scales + To::kGroups * kPanelColumns);
    }
  }
}

template <class Source, class Operand, int Rows, int Panels>
void multiply_blocks(const BlockJob& job) {
  using Sum = Operand::Sum;
  constexpr int groups = int(kRunK / Source::kGroup);  // of a run
  // Few rows have few chains of additions, each of which waits for itself: those of the groups of two
  // runs are taken in turn.
  constexpr int span = Rows <= 2 && Source::kRuns % 2 == 0 ? 2 : 1;
  constexpr int together = Rows <= 2 ? span * groups : 1;
  constexpr int steps = int(kRunQuads / Operand::kQuads / groups);
  constexpr int64_t step_bytes = 4 * Operand::kQuads * Operand::kElement;  // of x
  constexpr int64_t per_run = Source::kBytes / Source::kRuns;
  f32x16 total[Panels][Rows];
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r)
      total[i][r] = job.begun ? f32x16::load(job.sums + (i * Rows + r) * kPanelColumns)
                              : f32x16::zero();

  const int64_t row_bytes = job.x.row_bytes;
  const std::byte* x = job.x.row(job.row) + job.k * Operand::kElement;
  const int64_t first_group = job.k / Source::kGroup;
  const std::byte* scales = job.x.row(job.row) + job.x.scales_at + first_group * 4;
  const std::byte* shifts = job.x.row(job.row) + job.x.shifts_at + first_group * 4;
  const auto number = [&]<class T>(T, const std::byte* from, int r) __attribute__((always_inline)) {
    T value;
    std::memcpy(&value, from + r * row_bytes, sizeof(value));
    return value;
  };
  const std::byte* segment = job.weights;
  for (int64_t done = 0; done < job.runs; segment += Source::kBytes)
    for (int64_t run = 0; run < Source::kRuns; run += span, done += span) {
      if (job.ahead)
        for (int64_t at = 0; at < span * per_run; at += kLineBytes)
          __builtin_prefetch(segment + job.ahead + run * per_run + at);
#pragma GCC unroll 4
      for (int first = 0; first < span * groups; first += together) {
        Sum sums[together][Panels][Rows];
        for (int t = 0; t < together; ++t)
          for (int i = 0; i < Panels; ++i)
            for (int r = 0; r < Rows; ++r) {
              if constexpr (Operand::kRounded && !Source::kLeast)
                sums[t][i][r] = Sum::broadcast(number(int32_t(), shifts + 4 * t, r));
              else
                sums[t][i][r] = Operand::zero();
            }
#pragma GCC unroll 8
        for (int s = 0; s < steps; ++s)
#pragma GCC unroll 4
          for (int t = 0; t < together; ++t) {
            const int g = first + t, part = g % groups * steps + s;
            typename Operand::Weights w[Panels];
            for (int i = 0; i < Panels; ++i)
              w[i] = Source::step(segment + i * job.panel_bytes, run + g / groups, part);
            for (int r = 0; r < Rows; ++r)
              for (int i = 0; i < Panels; ++i)
                Operand::template add<Source::kWide>(
                    sums[t][i][r], w[i], x + (t * steps + s) * step_bytes + r * row_bytes);
          }
        x += together * steps * step_bytes;
        for (int t = 0; t < together; ++t, scales += 4, shifts += 4)
          for (int i = 0; i < Panels; ++i) {
            const std::byte* const own = segment + i * job.panel_bytes;
            const int64_t group = run * groups + first + t;
            const f32x16 scale = Source::scale(own, group);
            for (int r = 0; r < Rows; ++r) {
              if constexpr (Operand::kRounded)
                total[i][r] = fma(f32x16::broadcast(number(float(), scales, r)) * scale,
                                  sums[t][i][r].to_float(), total[i][r]);
              else
                total[i][r] = fma(scale, sums[t][i][r], total[i][r]);
            }
            if constexpr (Source::kLeast) {
              const f32x16 least = Source::least(own, group);
              for (int r = 0; r < Rows; ++r)
                total[i][r] =
                    fma(least, f32x16::broadcast(number(float(), shifts, r)), total[i][r]);
            }
          }
      }
    }
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) total[i][r].store(job.sums + (i * Rows + r) * kPanelColumns);
}

// The functions of a format.
struct BlockFunctions {
  int kept;    // as ByteOperand::kept_offset()
  bool least;  // Format::kLeast
  int64_t run_bytes;
  void (*expand)(const std::byte* segment, int64_t runs, int64_t ahead, std::byte* to);
  BlockKernel direct[8];       // one panel, by rows less one
  BlockKernel expanded[2][6];  // by panels and rows less one
};

template <class Operand>
class BlockPath {
 public:
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t kRowBlock = penstock::kRowBlock;

  static int64_t ready_bytes(const PanelView& p, int64_t rows, bool) {
    return BlockRows::of<Operand>(p, nullptr).row_bytes * std::min(rows, kRowBlock);
  }
  static int64_t work_bytes(const PanelView&, int64_t) {
    return kBlockPanels * (kExpandedBytes + kRowBlock * kPanelColumns * int64_t(sizeof(float)));
  }

  BlockPath(const PanelView& p, const InputRows& x, const Epilogue& e, Range rows, bool,
            std::byte* ready)
      : p_(p),
        x_(x),
        e_(e),
        rows_(rows),
        ready_(BlockRows::of<Operand>(p, ready)),
        functions_(functions_of(p.format)) {}

  void make(int64_t id, int64_t count, std::byte*) const {
    const Range own = even_share(rows_.size(), id, count);
    for (int64_t r = own.first; r < own.last; ++r) {
      if (x_.elem == Elem::bf16) make_row(x_.row<bf16>(rows_.first + r), r);
      else make_row(x_.row<float>(rows_.first + r), r);
    }
  }

  void multiply(Range units, std::byte* work) const {
    float* const sums = reinterpret_cast<float*>(work + kBlockPanels * kExpandedBytes);
    if (rows_.size() <= kDirectBands * kDirectRows) return direct(units, sums);
    const int64_t fit = std::max(kLeastRows, kRowsBytes / ready_.row_bytes);
    const int64_t blocks = ceil_div(rows_.size(), fit);
    for (int64_t b = 0; b < blocks; ++b)
      expanded(even_share(rows_.size(), b, blocks), units, work, sums);
  }

 private:
  // So many bands of so many rows read codes rather than expanded weights. (One thread, avx512, TOP/s
  // of 4, 8, 16 and 32 rows: Q4_0 from codes 0.27 0.33 0.33, expanded 0.21 at 8, 0.26, 0.29; Q6_K
  // from codes 0.12 0.20 0.22, expanded 0.15, 0.19, 0.23. Q4_0 alone: 0.13 0.14 0.14, expanded 0.12,
  // 0.15, 0.17.)
  static constexpr int64_t kDirectBands = Operand::kRounded ? 4 : 1;
#if defined(__AVX512F__)
  static constexpr int64_t kDirectRows = Operand::kElement < 4 ? 8 : 4;
  static constexpr int kPanels = 2;
  static constexpr int kRows = Operand::kStepBytes / Operand::kQuads > 2 * kLineBytes ? 4 : 6;
#else
  static constexpr int64_t kDirectRows = 4;
  static constexpr int kPanels = 1;
  static constexpr int kRows = 4;
#endif
  static constexpr int kBlockPanels = 2;  // of a gated unit, or side by side
  static constexpr int64_t kSlice = 512;  // k that are expanded at once
  static constexpr int64_t kExpandedBytes =
      kSlice / kRunK * ExpandedWeights<Operand, 16, true, false>::kBytes;
  static constexpr int64_t kRowsBytes = 1 << 20;  // of x that stay in a 2 MiB L2
  static constexpr int64_t kLeastRows = 32;

  template <class T>
  void make_row(const T* x, int64_t r) const {
    std::byte* const to = ready_.row(r);
    const int64_t k = x_.cols, halves = kRunK / p_.scaled;
    for (int64_t first = 0; first < p_.depth; first += kRunK) {
      const int64_t group = first / p_.scaled;
      const int64_t count = std::clamp<int64_t>(k - first, 0, kRunK);
      if constexpr (Operand::kRounded) {
        int8_t* const codes = reinterpret_cast<int8_t*>(to) + first;
        float scale;
        int32_t sum[2];
        quantize_group(x + first, count, kRunK, -1, codes, scale, sum[0]);
        if (halves == 2) {
          sum[1] = 0;
          for (int i = 16; i < 32; ++i) sum[1] += codes[i];
          sum[0] -= sum[1];
        }
        for (int64_t h = 0; h < halves; ++h) {
          ready_.scales(r)[group + h] = scale;
          if (functions_.least) ready_.sums(r)[group + h] = scale * float(sum[h]);
          else ready_.starts(r)[group + h] = -functions_.kept * sum[h];
        }
      } else {
        // k is of whole runs.
        const f32x16 low = count ? f32x16::load(x + first) : f32x16::zero();
        const f32x16 high = count ? f32x16::load(x + first + 16) : f32x16::zero();
        if (functions_.least) {
          ready_.sums(r)[group] = halves == 2 ? hsum(low) : hsum(low + high);
          if (halves == 2) ready_.sums(r)[group + 1] = hsum(high);
        }
        store_run(to + first * Operand::kElement, low, high);
      }
    }
  }
  static void store_run(std::byte* to, f32x16 low, f32x16 high) {
    if constexpr (Operand::kElement == 4) {
      low.store(reinterpret_cast<float*>(to));
      high.store(reinterpret_cast<float*>(to) + 16);
    } else if constexpr (Operand::kElement == 2) {
      bf16 values[32];
      low.store(values);
      high.store(values + 16);
      for (int i = 0; i < 32; i += 4) std::swap(values[i + 1], values[i + 2]);
      std::memcpy(to, values, sizeof(values));
    }
  }

  void direct(Range units, float* sums) const {
    const int64_t bands = ceil_div(rows_.size(), kDirectRows);
    for (int64_t unit = units.first; unit < units.last; ++unit)
      for (int64_t b = 0; b < bands; ++b) {
        const Range band = even_share(rows_.size(), b, bands);
        const int64_t panel = band.size() * kPanelColumns;
        for (int i = 0; i < p_.per_unit; ++i)
          functions_.direct[band.size() - 1](
              {ready_, band.first, 0, p_.panel(unit) + i * p_.panel_bytes, 0, p_.depth / kRunK,
               b ? 0 : p_.tuning.stream_ahead, false, sums + i * panel});
        e_.finish(FloatSums{sums, panel}, rows_.first + band.first, band.size(),
                  unit * kPanelColumns);
      }
  }

  // Some of the rows, counted from the row block's first.
  void expanded(Range some, Range units, std::byte* work, float* carry) const {
    const int64_t slices = ceil_div(p_.depth, kSlice);
    const int64_t bands = ceil_div(some.size(), kRows);
    const Order order(units, p_.per_unit, kPanels, slices);
    const int64_t slice_bytes = kSlice / p_.segment * p_.segment_bytes;
    for (Place at = order.first(); at.panels; at = order.after(at)) {
      const int64_t runs = std::min(kSlice, p_.depth - at.slice * kSlice) / kRunK;
      for (int i = 0; i < at.panels; ++i)
        functions_.expand(p_.panel(at.unit) + i * p_.panel_bytes + at.slice * slice_bytes, runs,
                          slice_bytes, work + i * kExpandedBytes);
      for (int64_t b = 0; b < bands; ++b) {
        const Range band = even_share(some.size(), b, bands);
        const int64_t panel = band.size() * kPanelColumns;
        float* const sums = carry + band.first * at.panels * kPanelColumns;
        for (int i = 0, width; i < at.panels; i += width) {
          width = std::min(kPanels, at.panels - i);
          functions_.expanded[width - 1][band.size() - 1](
              {ready_, some.first + band.first, at.slice * kSlice, work + i * kExpandedBytes,
               kExpandedBytes, runs, 0, at.slice > 0, sums + i * panel});
        }
        if (order.ends(at))
          e_.finish_block(at.unit, at.panels, rows_.first + some.first + band.first, band.size(),
                          [&](int i) { return FloatSums{sums + i * panel, panel}; });
      }
    }
  }

  template <class Source, int Panels, int... Row>
  static constexpr void set(BlockKernel* to, std::integer_sequence<int, Row...>) {
    ((to[Row] = multiply_blocks<Source, Operand, Row + 1, Panels>), ...);
  }
  template <class Format>
  static constexpr BlockFunctions make_functions() {
    using To = Expanded<Format, Operand>;
    BlockFunctions f{};
    if constexpr (Format::kWhole || !Operand::kRounded) {  // else nobody asks for them
      if constexpr (Operand::kRounded) f.kept = Operand::template kept_offset<Format>();
      f.least = Format::kLeast;
      f.run_bytes = To::kBytes;
      f.expand = expand_runs<Format, Operand>;
      set<DirectWeights<Format, Operand>, 1>(f.direct,
                                             std::make_integer_sequence<int, kDirectRows>());
      set<To, 1>(f.expanded[0], std::make_integer_sequence<int, kRows>());
      set<To, kPanels>(f.expanded[kPanels - 1], std::make_integer_sequence<int, kRows>());
    }
    return f;
  }
  static const BlockFunctions& functions_of(WeightFormat format) {
    return *with_block_format(format, []<class Format>(Format) { return &kFunctions<Format>; });
  }
  template <class Format>
  static inline const BlockFunctions kFunctions = make_functions<Format>();

  const PanelView& p_;
  const InputRows& x_;
  const Epilogue& e_;
  const Range rows_;
  const BlockRows ready_;
  const BlockFunctions& functions_;
};

}  // namespace penstock
