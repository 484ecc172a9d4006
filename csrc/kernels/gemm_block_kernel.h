// The kernel of products of weights in blocks or groups, for weights of every source and Operand: some
// rows by panels side by side. There is none for every number of rows, which would be most of what there
// is to compile: with Spare the last row may be one that is there twice.
#pragma once

#include "gemm_block_weights.h"

namespace penstock {

// Rows of x made ready. A row holds its k; for rounded ones then the scale of each group of the
// weights; then an addend for each of these: where groups have a least value x's sum (float), else
// for rounded ones what its dot starts from (int32). Rows lie an odd number of cache lines apart.
struct BlockRows {
  std::byte* data;
  int64_t scales_at, addends_at, row_bytes;

  template <class Operand>
  static BlockRows of(const PanelView& p, std::byte* memory) {
    const int64_t scales = p.depth * Operand::kElement;
    const int64_t addends = scales + (Operand::kRounded ? p.groups() * 4 : 0);
    const int64_t bytes = round_up(addends + p.groups() * 4, kLineBytes);
    return {memory, scales, addends, bytes / kLineBytes % 2 ? bytes : bytes + kLineBytes};
  }

  std::byte* row(int64_t r) const { return data + r * row_bytes; }
  float* scales(int64_t r) const { return reinterpret_cast<float*>(row(r) + scales_at); }
  template <class T>
  T* addends(int64_t r) const {
    return reinterpret_cast<T*>(row(r) + addends_at);
  }
};

// What one call of a kernel multiplies: rows from `row` on by panels side by side, from column k on.
struct BlockJob {
  const BlockRows& x;
  Range rows;
  int64_t k;
  const std::byte* weights;
  const std::byte* behind;  // what lies behind all segments, of the first
  int64_t panel_bytes;
  int64_t runs;        // of 32 k
  int64_t ahead;       // how far weights are prefetched, or 0
  bool begun;          // sums has those of the k before
  float* sums;         // [panel][row][16], of the kernel's rows
};
using BlockKernel = void (*)(const BlockJob&);

// Sums of some rows by panels side by side.
template <class Operand, int Rows, int Panels>
struct BlockSums {
  using Sum = Operand::Sum;
  Sum of[Panels][Rows];

  // at(panel, row): what the row's begin with.
  template <class At>
  PENSTOCK_INLINE void begin(At at) {
    for (int i = 0; i < Panels; ++i)
      for (int r = 0; r < Rows; ++r) of[i][r] = at(i, r);
  }
  PENSTOCK_INLINE Sum row(int i, int r) const { return of[i][r]; }
  // A step of weights by x, of which row r lies at x + at(r).
  template <bool Wide, class At>
  PENSTOCK_INLINE void add(const typename Operand::Weights (&w)[Panels], const std::byte* x, At at) {
    for (int r = 0; r < Rows; ++r)
      for (int i = 0; i < Panels; ++i) Operand::template add<Wide>(of[i][r], w[i], x + at(r));
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
template <class Operand, int Rows, int Panels>
  requires(Operand::kSquares && Rows > 1)
struct BlockSums<Operand, Rows, Panels> {
  using Sum = Operand::Sum;
  Squares<Sum, Rows> of[Panels];

  template <class At>
  PENSTOCK_INLINE void begin(At at) {
    for (int i = 0; i < Panels; ++i)
      of[i] = Squares<Sum, Rows>::of([&](int r) __attribute__((always_inline)) { return at(i, r); });
  }
  PENSTOCK_INLINE Sum row(int i, int r) const { return of[i].row(r); }
  template <bool, class At>
  PENSTOCK_INLINE void add(const typename Operand::Weights (&w)[Panels], const std::byte* x, At at) {
    for (int i = 0; i < Panels; ++i)
      of[i].add(w[i].quads[0].v, w[i].quads[1].v,
                [&](int r) __attribute__((always_inline)) { return x + at(r); });
  }
};
#endif

template <class Source, class Operand, int Rows, int Panels, bool Spare>
class BlockProduct {
  static constexpr bool kWhole = Source::kGroup == 0;  // one group of all the depth
  static constexpr bool kLong = kWhole || Source::kGroup > kRunK;
  // Groups of a run.
  static constexpr int kGroups = kLong ? 1 : int(kRunK / std::max<int64_t>(Source::kGroup, 1));
  static constexpr int kSpan = !kLong && Rows <= 2 && Source::kRuns % 2 == 0 ? 2 : 1;  // runs

 public:
  // Few rows have few chains of additions, each of which waits for itself: those of the groups of two
  // runs are taken in turn.
  static constexpr int kTogether = Rows <= 2 ? kSpan * kGroups : 1;

  static void run(const BlockJob& job) {
    BlockProduct product(job);
    if constexpr (kLong) product.long_groups(job);
    else product.short_groups(job);
    for (int i = 0; i < Panels; ++i)
      for (int r = 0; r < Rows; ++r)
        product.total_[i][r].store(job.sums + (i * Rows + r) * kPanelColumns);
  }

 private:
  using Sum = Operand::Sum;
  using Sums = BlockSums<Operand, Rows, Panels>;
  static constexpr int kSteps = int(kRunQuads / Operand::kQuads / kGroups);  // of a group in a run
  static constexpr int64_t kStepX = 4 * Operand::kQuads * Operand::kElement;  // bytes of x
  static constexpr int64_t kRunBytes = Source::kBytes / Source::kRuns;

  PENSTOCK_INLINE explicit BlockProduct(const BlockJob& job)
      : row_bytes_(job.x.row_bytes),
        last_(row_bytes_ * ((Spare ? job.rows.size() : Rows) - 1)),
        panel_bytes_(job.panel_bytes) {
    const std::byte* const row = job.x.row(job.rows.first);
    x_ = row + job.k * Operand::kElement;
    const int64_t first = kWhole ? 0 : job.k / std::max<int64_t>(Source::kGroup, 1);
    scales_ = row + job.x.scales_at + first * 4;
    addends_ = row + job.x.addends_at + first * 4;
    for (int i = 0; i < Panels; ++i)
      for (int r = 0; r < Rows; ++r)
        total_[i][r] = job.begun ? f32x16::load(job.sums + (i * Rows + r) * kPanelColumns)
                                 : f32x16::zero();
  }

  // From the first row's place to row r's.
  PENSTOCK_INLINE int64_t row_at(int r) const { return Spare && r == Rows - 1 ? last_ : r * row_bytes_; }
  template <class T>
  PENSTOCK_INLINE T number(const std::byte* from, int r) const {
    T value;
    std::memcpy(&value, from + row_at(r), sizeof(value));
    return value;
  }

  // Weights of step i of `count`, evenly, so far ahead as a segment is of what is to be prefetched.
  template <int64_t Bytes>
  PENSTOCK_INLINE void prefetch(const std::byte* from, int i, int count) const {
    const int64_t first = (i * Bytes / count + kLineBytes - 1) / kLineBytes * kLineBytes;
    const int64_t last = (i + 1) * Bytes / count;
    for (int64_t at = first; at < last; at += kLineBytes)
      for (int p = 0; p < Panels; ++p) {
        __builtin_prefetch(from + p * panel_bytes_ + at, 0, Source::kLevel == 1 ? 3 : 2);
        asm volatile("");  // or GCC brings all of a segment together, ahead of its loads
      }
  }
  // What lies behind those that follow.
  PENSTOCK_INLINE void prefetch_behind(const std::byte* behind) const {
    if constexpr (Source::kBehind > 0)
      if (reinterpret_cast<uintptr_t>(behind) % kLineBytes == 0)
        for (int i = 0; i < Panels; ++i) __builtin_prefetch(behind + (Panels + i) * panel_bytes_);
  }
  // Panels side by side are followed by the next ones of as many.
  PENSTOCK_INLINE static const std::byte* following(const BlockJob& job, const std::byte* segment) {
    const std::byte* const next = segment + job.ahead;
    return next - job.weights < job.panel_bytes ? next : next + (Panels - 1) * job.panel_bytes;
  }

  PENSTOCK_INLINE void short_groups(const BlockJob& job) {
    const std::byte* segment = job.weights;
    const std::byte* behind = job.behind;
    for (int64_t done = 0; done < job.runs; segment += Source::kBytes, behind += Source::kBehind) {
      const std::byte* const next = following(job, segment);
      prefetch_behind(behind);
      for (int64_t run = 0; run < Source::kRuns; run += kSpan, done += kSpan)
#pragma GCC unroll 4
        for (int first = 0; first < kSpan * kGroups; first += kTogether)
          groups(segment, behind, next, run, first);
    }
  }

  // kTogether groups of `run`, and perhaps the next, from its group `first` on.
  PENSTOCK_INLINE void groups(const std::byte* segment, const std::byte* behind,
                              [[maybe_unused]] const std::byte* next,
                              int64_t run, int first) {
    Sums sums[kTogether];
    typename Source::Shift shift[kTogether][Panels];
    for (int t = 0; t < kTogether; ++t) {
      for (int i = 0; i < Panels; ++i)
        shift[t][i] = Source::shift(segment + i * panel_bytes_, behind + i * panel_bytes_,
                                    run * kGroups + first + t);
      sums[t].begin([&](int, int r) __attribute__((always_inline)) {
        if constexpr (Operand::kRounded && !Source::kLeast)
          return Sum::broadcast(number<int32_t>(addends_ + 4 * t, r));
        else
          return Operand::zero();
      });
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s)
#pragma GCC unroll 4
      for (int t = 0; t < kTogether; ++t) {
        const int g = first + t, part = g % kGroups * kSteps + s;
        if constexpr (Source::kLevel > 0)
          prefetch<kSpan * kRunBytes>(next + run * kRunBytes, first * kSteps + s * kTogether + t,
                                      kSpan * kGroups * kSteps);
        step(segment, run + g / kGroups, part, shift[t], sums[t], x_ + (t * kSteps + s) * kStepX);
      }
    x_ += kTogether * kSteps * kStepX;
    for (int t = 0; t < kTogether; ++t) end_group(segment, run * kGroups + first + t, sums[t]);
  }

  // A group is a segment, of several runs; or the whole depth.
  PENSTOCK_INLINE void long_groups(const BlockJob& job) {
    const std::byte* segment = job.weights;
    const std::byte* behind = job.behind;
    const auto zero = [](int, int) __attribute__((always_inline)) { return Operand::zero(); };
    Sums sums;
    if constexpr (kWhole)
      sums.begin([&](int i, int r) __attribute__((always_inline)) { return total_[i][r]; });
    else
      sums.begin(zero);
    typename Source::Shift shift[Panels];
    for (int i = 0; i < Panels; ++i)
      shift[i] = Source::shift(segment + i * panel_bytes_, behind + i * panel_bytes_, 0);
    for (int64_t done = 0; done < job.runs; segment += Source::kBytes) {
      [[maybe_unused]] const std::byte* const next = following(job, segment);
      prefetch_behind(behind);
      for (int64_t run = 0; run < Source::kRuns; ++run, ++done) {
#pragma GCC unroll 8
        for (int s = 0; s < kSteps; ++s) {
          if constexpr (Source::kLevel > 0) prefetch<kRunBytes>(next + run * kRunBytes, s, kSteps);
          step(segment, run, s, shift, sums, x_ + s * kStepX);
        }
        x_ += kSteps * kStepX;
      }
      if constexpr (!kWhole) {
        end_group(segment, 0, sums);
        behind += Source::kBehind;
        sums.begin(zero);
        for (int i = 0; i < Panels; ++i)
          if (done < job.runs)
            shift[i] = Source::shift(segment + Source::kBytes + i * panel_bytes_,
                                     behind + i * panel_bytes_, 0);
      }
    }
    if constexpr (kWhole)
      for (int i = 0; i < Panels; ++i)
        for (int r = 0; r < Rows; ++r) total_[i][r] = sums.row(i, r);
  }

  PENSTOCK_INLINE void step(const std::byte* segment, int64_t run, int part,
                            const typename Source::Shift (&shift)[Panels],
                            Sums& sums, const std::byte* x) const {
    typename Operand::Weights w[Panels];
    for (int i = 0; i < Panels; ++i)
      w[i] = Source::step(segment + i * panel_bytes_, run, part, shift[i]);
    sums.template add<Source::kWide>(
        w, x, [&](int r) __attribute__((always_inline)) { return row_at(r); });
  }

  // The next group of x, and the given one of the segment.
  PENSTOCK_INLINE void end_group(const std::byte* segment, int64_t group,
                                 const Sums& sums) {
    for (int i = 0; i < Panels; ++i) {
      const std::byte* const own = segment + i * panel_bytes_;
      const f32x16 scale = Source::scale(own, group);
      for (int r = 0; r < Rows; ++r) {
        f32x16& total = total_[i][r];
        if constexpr (Operand::kRounded)
          total = fma(f32x16::broadcast(number<float>(scales_, r)) * scale,
                      sums.row(i, r).to_float(), total);
        else
          total = fma(scale, sums.row(i, r), total);
      }
      if constexpr (Source::kLeast) {
        const f32x16 least = Source::least(own, group);
        for (int r = 0; r < Rows; ++r)
          total_[i][r] =
              fma(least, f32x16::broadcast(number<float>(addends_, r)), total_[i][r]);
      }
    }
    scales_ += 4;
    addends_ += 4;
  }

  const int64_t row_bytes_, last_, panel_bytes_;
  const std::byte *x_, *scales_, *addends_;
  f32x16 total_[Panels][Rows];
};

}  // namespace penstock
