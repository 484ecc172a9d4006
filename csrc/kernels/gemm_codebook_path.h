// Products of weights in codebooks of rows, for every Operand: a Path of gemm_product.h.
//
// Lanes are k, so that one register holds all values of a column, and a look-up is one instruction. For a
// row or two codes become weights in the registers that multiply them, eight columns at a time. For more,
// a slice of eight columns is expanded into L1 first, and all rows take it from there, four by four; their
// lanes wait in the carry. Outliers are looked up in one row after another, or in sixteen at once, whose
// elements at a k lie together. All add in one order (gemm_codebook.h).
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>

#include "gemm_codebook_operands.h"
#include "gemm_epilogue.h"
#include "gemm_kernels.h"
#include "gemm_product.h"

namespace penstock {

// Lanes of eight columns, added as hsum() adds them.
PENSTOCK_INLINE void add_lanes(const f32x16 (&lanes)[kCodebookColumns], float* to) {
#if defined(__AVX2__)
  const auto four_lanes = [&](int i) __attribute__((always_inline)) {  // (i, i + 8), then (i, i + 4)
    const auto eight = [](f32x16 a) __attribute__((always_inline)) {
#if defined(__AVX512F__)
      return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
      return _mm256_add_ps(a.lo, a.hi);
#endif
    };
    const __m256 a = eight(lanes[i]), b = eight(lanes[i + 4]);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const auto two_lanes = [&](int i) __attribute__((always_inline)) {  // of columns i, i + 1, i + 4, i + 5
    const __m256d a = _mm256_castps_pd(four_lanes(i)), b = _mm256_castps_pd(four_lanes(i + 1));
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  };
  const __m256 a = two_lanes(0), b = two_lanes(2);
  _mm256_storeu_ps(to, _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
#else
  for (int c = 0; c < kCodebookColumns; ++c) to[c] = hsum(lanes[c]);
#endif
}

// As a lane of fma().
PENSTOCK_INLINE float fma_of_lane(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

template <class Operand>
class CodebookPath {
  using Element = Operand::Element;
  using Weights = Operand::Weights;

 public:
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t row_block(const CodebookPanels&) { return kRowBlock; }

  static int64_t ready_bytes(const CodebookPanels& p, int64_t rows, bool) {
    rows = std::min(rows, kRowBlock);
    return row_bytes(p) * rows + (beside(p, rows) ? ceil_div(rows, kBeside) * beside_bytes(p) : 0);
  }
  static int64_t work_bytes(const CodebookPanels&, int64_t rows) {
    rows = std::min(rows, kRowBlock);
    return kTileBytes + rows * (kLanesBytes + 2 * kSumsBytes);
  }

  CodebookPath(const CodebookPanels& p, const InputRows& x, const Epilogue& e, Range rows, bool,
               std::byte* ready)
      : p_(p),
        x_(x),
        e_(e),
        rows_(rows),
        row_bytes_(row_bytes(p)),
        steps_(p.steps()),
        ready_(ready),
        beside_(beside(p, rows.size()) ? ready + rows.size() * row_bytes_ : nullptr) {}

  void make(int64_t id, int64_t count, std::byte*) const {
    const Range own = even_share(rows_.size(), id, count);
    for (int64_t r = own.first; r < own.last; ++r) {
      if constexpr (std::is_same_v<Element, bf16>) make_row(x_.row<bf16>(rows_.first + r), r);
      else if (x_.elem == Elem::bf16) make_row(x_.row<bf16>(rows_.first + r), r);
      else make_row(x_.row<float>(rows_.first + r), r);
    }
  }

  void multiply(Range units, std::byte* work) const {
    p_.bits == 4 ? multiply<4>(units, work) : multiply<3>(units, work);
  }

 private:
  static constexpr int64_t kDirectRows = 2;
  static constexpr int64_t kSliceSteps = 32;  // that are expanded at once
#if defined(__AVX512F__)
  static constexpr int kBandRows = 4, kBandColumns = 4;
#else
  static constexpr int kBandRows = 2, kBandColumns = 2;
#endif
  static constexpr int64_t kTileStep = kCodebookColumns * Weights::kBytes;
  static constexpr int64_t kTileBytes = kSliceSteps * kTileStep;
  static constexpr int64_t kLanesBytes = kCodebookColumns * kLineBytes;  // of a row
  static constexpr int64_t kSumsBytes = kPanelColumns * int64_t(sizeof(float));
  static constexpr int64_t kRowsBytes = 512 << 10;  // of x that stay in L2, beside what is expanded
  static constexpr int64_t kLeastRows = 32;

  template <int Bits>
  static constexpr int kLineSteps = int(codebook_stretch(Bits, false).steps);
  static constexpr int kChains = 4;  // of outliers
  static constexpr int64_t kBeside = f32x16::lanes;  // rows whose elements lie together

  // An odd number of cache lines, so that rows do not meet in one set.
  static int64_t row_bytes(const CodebookPanels& p) {
    const int64_t bytes = p.steps() * Weights::kBytes;
    return bytes / kLineBytes % 2 ? bytes : bytes + kLineBytes;
  }
  const std::byte* row(int64_t r) const { return ready_ + r * row_bytes_; }

  // Whether so many rows lie beside each other, too.
  static bool beside(const CodebookPanels& p, int64_t rows) { return p.outliers && rows > kOwnRows; }
  // Of sixteen.
  static int64_t beside_bytes(const CodebookPanels& p) {
    return p.steps() * kCodebookStep * kBeside * int64_t(sizeof(Element));
  }
  // At a k.
  Element* beside(int64_t r, int64_t k) const {
    return reinterpret_cast<Element*>(beside_ + r / kBeside * beside_bytes(p_)) + k * kBeside;
  }

  template <class T>
  void make_row(const T* x, int64_t r) const {
    Operand::make_row(x, x_.cols, steps_, ready_ + r * row_bytes_);
    if (!beside_) return;
    Element* to = beside(r, 0) + r % kBeside;
    for (int64_t k = 0; k < x_.cols; ++k, to += kBeside) {
      if constexpr (std::is_same_v<Element, T>) *to = x[k];
      else *to = to_f32(x[k]);
    }
  }

  template <int Bits>
  using Values = Operand::template Values<Bits>;
  template <int Bits>
  PENSTOCK_INLINE Values<Bits> values(const std::byte* panel, int column) const {
    return Values<Bits>::load(panel + column * (int64_t(elem_bytes(p_.values)) << Bits), p_.values);
  }

  template <int Bits>
  void multiply(Range units, std::byte* work) const {
    float* const sums = reinterpret_cast<float*>(work + kTileBytes + rows_.size() * kLanesBytes);
    const int64_t panel_floats = rows_.size() * kPanelColumns;
    for (int64_t unit = units.first; unit < units.last; ++unit) {
      for (int i = 0; i < p_.per_unit; ++i) {
        const std::byte* const panel = p_.panel(unit) + i * p_.panel_bytes;
        fetch_outliers(panel);
        for (int half = 0; half < 2; ++half) {
          float* const own = sums + i * panel_floats + half * kCodebookColumns;
          if (rows_.size() == 1) direct<Bits, 1>(panel, half, own);
          else if (rows_.size() <= kDirectRows) direct<Bits, 2>(panel, half, own);
          else expanded<Bits>(panel, half, work, own);
        }
      }
      e_.finish_block(unit, p_.per_unit, rows_.first, rows_.size(),
                      [&](int) { return FloatSums{sums, panel_floats}; });
    }
  }

  // Calls use(step, Weights) for the steps of one column's line, of which `first` is the first.
  template <int Bits, class Use>
  PENSTOCK_INLINE void line_steps(const std::byte* line, int first, const Values<Bits>& values,
                                  Use&& use) const {
    const auto codes = Operand::codes(line);
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
      (use(first + I, Operand::template named<Bits>(codes, unsigned(Bits * I), values)), ...);
    }(std::make_integer_sequence<int, kLineSteps<Bits>>());
  }
  // And for the step of what three lines have left over.
  template <class Use>
  PENSTOCK_INLINE void spare_step(const std::byte* line, const Values<3>& values, Use&& use) const {
    const std::byte* const second = line + kCodebookLine;
    use(3 * kLineSteps<3>, Operand::spare(Operand::codes(line), Operand::codes(second),
                                          Operand::codes(second + kCodebookLine), values));
  }

  // Of eight columns by one or two rows, from codes.
  template <int Bits, int Rows>
  void direct(const std::byte* panel, int half, float* sums) const {
    Values<Bits> values_of[kCodebookColumns];
    f32x16 lanes[Rows][kCodebookColumns];
#pragma GCC unroll 8  // or what is to be in registers is made in memory
    for (int c = 0; c < kCodebookColumns; ++c) {
      values_of[c] = values<Bits>(panel, half * kCodebookColumns + c);
      for (int r = 0; r < Rows; ++r) lanes[r][c] = f32x16::zero();
    }
    const std::byte* line = panel + p_.codes_at + half * p_.half_bytes;
    const std::byte* x = row(0);
    const auto stretches = [&]<bool Triple>(int64_t count, std::bool_constant<Triple>)
                               __attribute__((always_inline)) {
      constexpr CodebookStretch own = codebook_stretch(Bits, Triple);
      const auto each_column = [&](auto&& of_column) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int c = 0; c < kCodebookColumns; ++c)
          of_column(c, [&, c](int step, const Weights& w) __attribute__((always_inline)) {
            for (int r = 0; r < Rows; ++r)
              Operand::add(lanes[r][c], w, x + r * row_bytes_ + step * Weights::kBytes);
          });
      };
      for (int64_t i = 0; i < count; ++i) {
        // Columns in turn: a line's steps wait for each other.
#pragma GCC unroll 3
        for (int l = 0; l < own.lines; ++l)
          each_column([&](int c, auto&& add) __attribute__((always_inline)) {
            const std::byte* const at = line + l * kCodebookLine + c * kLineBytes;
            __builtin_prefetch(at + p_.tuning.stream_ahead);
            line_steps<Bits>(at, l * kLineSteps<Bits>, values_of[c], add);
          });
        if constexpr (Triple)
          each_column([&](int c, auto&& add) __attribute__((always_inline)) {
            spare_step(line + c * kLineBytes, values_of[c], add);
          });
        line += own.lines * kCodebookLine;
        x += own.steps * Weights::kBytes;
      }
    };
    if constexpr (Bits == 3) stretches(p_.triples, std::true_type());
    stretches(p_.singles, std::false_type());
    for (int r = 0; r < Rows; ++r) {
      add_lanes(lanes[r], sums + r * kPanelColumns);
      if (p_.outliers) add_outliers(panel, half, r, sums + r * kPanelColumns);
    }
  }

  // Of eight columns by all rows, slice by slice.
  template <int Bits>
  void expanded(const std::byte* panel, int half, std::byte* work, float* sums) const {
    float* const carry = reinterpret_cast<float*>(work + kTileBytes);
    const int64_t fit = std::max(kLeastRows, kRowsBytes / row_bytes_);
    const int64_t blocks = ceil_div(rows_.size(), fit);
    for (int64_t b = 0; b < blocks; ++b) {
      const Range some = even_share(rows_.size(), b, blocks);
      const std::byte* line = panel + p_.codes_at + half * p_.half_bytes;
      for (int64_t first = 0; first < steps_;) {
        const int64_t steps = expand<Bits>(panel, half, line, first, work);
        bands(some, work, first, steps, carry);
        first += steps;
      }
      for (int64_t r = some.first; r < some.last; ++r) {
        f32x16 lanes[kCodebookColumns];
        for (int c = 0; c < kCodebookColumns; ++c)
          lanes[c] = f32x16::load(carry + (r * kCodebookColumns + c) * f32x16::lanes);
        add_lanes(lanes, sums + r * kPanelColumns);
        if (p_.outliers && !beside_) add_outliers(panel, half, r, sums + r * kPanelColumns);
      }
    }
    for (int64_t r = 0; beside_ && r < rows_.size(); r += kBeside)
      add_outliers_beside(panel, half, r, sums + r * kPanelColumns);
  }

  // Codes of eight columns from step `first` on to weights, [step][8], as many as a slice has; `line`
  // goes on to what follows. Returns the steps.
  template <int Bits>
  int64_t expand(const std::byte* panel, int half, const std::byte*& line, int64_t first,
                 std::byte* to) const {
    const int64_t in_triples = p_.triples * codebook_stretch(3, true).steps;
    if (first < in_triples)
      return expand<Bits, true>(panel, half, line, in_triples - first, to);
    return expand<Bits, false>(panel, half, line, steps_ - first, to);
  }
  template <int Bits, bool Triple>
  int64_t expand(const std::byte* panel, int half, const std::byte*& line, int64_t left,
                 std::byte* to) const {
    constexpr CodebookStretch own = codebook_stretch(Bits, Triple);
    const int64_t count = std::min(kSliceSteps, left) / own.steps;
    if constexpr (Bits == 3 || !Triple) {
      for (int c = 0; c < kCodebookColumns; ++c) {
        const Values<Bits> of = values<Bits>(panel, half * kCodebookColumns + c);
        const std::byte* at = line + c * kLineBytes;
        std::byte* out = to + c * Weights::kBytes;
        for (int64_t i = 0; i < count; ++i) {
          const auto put = [&](int step, const Weights& w) __attribute__((always_inline)) {
            w.store(out + step * kTileStep);
          };
#pragma GCC unroll 3
          for (int l = 0; l < own.lines; ++l)
            line_steps<Bits>(at + l * kCodebookLine, l * kLineSteps<Bits>, of, put);
          if constexpr (Triple) spare_step(at, of, put);
          at += own.lines * kCodebookLine;
          out += own.steps * kTileStep;
        }
      }
    }
    line += count * own.lines * kCodebookLine;
    return count * own.steps;
  }

  void bands(Range some, const std::byte* tile, int64_t first, int64_t steps, float* carry) const {
    for (int64_t r = some.first; r < some.last; r += kBandRows) {
      const auto rows = int(std::min<int64_t>(kBandRows, some.last - r));
      for (int c = 0; c < kCodebookColumns; c += kBandColumns) {
        const std::byte* const w = tile + c * Weights::kBytes;
        float* const lanes = carry + (r * kCodebookColumns + c) * f32x16::lanes;
        const auto some_rows = [&]<int... R>(std::integer_sequence<int, R...>) {
          ((rows == R + 1 ? band<R + 1>(r, w, first, steps, lanes) : void()), ...);
        };
        some_rows(std::make_integer_sequence<int, kBandRows>());
      }
    }
  }

  // Some rows by some columns that are expanded: [row][8] lanes.
  template <int Rows>
  void band(int64_t first_row, const std::byte* w, int64_t first, int64_t steps,
            float* carry) const {
    f32x16 lanes[Rows][kBandColumns];
    const auto at = [&](int r, int c) __attribute__((always_inline)) {
      return carry + (r * kCodebookColumns + c) * f32x16::lanes;
    };
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < kBandColumns; ++c)
        lanes[r][c] = first ? f32x16::load(at(r, c)) : f32x16::zero();
    const std::byte* x = row(first_row) + first * Weights::kBytes;
    for (int64_t s = 0; s < steps; ++s, x += Weights::kBytes, w += kTileStep) {
      Weights own[kBandColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kBandColumns; ++c) own[c] = Weights::load(w + c * Weights::kBytes);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < kBandColumns; ++c) Operand::add(lanes[r][c], own[c], x + r * row_bytes_);
    }
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < kBandColumns; ++c) lanes[r][c].store(at(r, c));
  }

  // Outliers, which lie elsewhere, while codes are read.
  void fetch_outliers(const std::byte* panel) const {
    if (!p_.outliers) return;
    const OutlierRun* const runs = p_.runs(panel);
    for (int lane = 0; lane < kPanelColumns; ++lane) {
      const auto [first, count] = runs[lane];
      const std::byte* const from = reinterpret_cast<const std::byte*>(p_.excess() + first);
      for (int64_t i = 0; i < int64_t(count) * 4; i += kLineBytes) __builtin_prefetch(from + i);
      const std::byte* const at = reinterpret_cast<const std::byte*>(p_.places() + first);
      for (int64_t i = 0; i < int64_t(count) * 2; i += kLineBytes) __builtin_prefetch(at + i);
    }
  }

  // Of row r to the sums of eight columns.
  PENSTOCK_INLINE void add_outliers(const std::byte* panel, int half, int64_t r, float* sums) const {
    const OutlierRun* const runs = p_.runs(panel) + half * kCodebookColumns;
    const std::byte* const x = row(r);
    for (int c = 0; c < kCodebookColumns; ++c) {
      const float* const excess = p_.excess() + runs[c].first;
      const uint16_t* const places = p_.places() + runs[c].first;
      const int64_t count = runs[c].count;
      float chains[kChains] = {};
      const auto add = [&](int64_t i, int chain) __attribute__((always_inline)) {
        chains[chain] = fma_of_lane(excess[i], Operand::element(x, places[i]), chains[chain]);
      };
      int64_t i = 0;
      for (; i + kChains <= count; i += kChains)
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) add(i + chain, chain);
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain)
        if (i + chain < count) add(i + chain, chain);
      sums[c] += (chains[0] + chains[1]) + (chains[2] + chains[3]);
    }
  }

  // Likewise of sixteen rows, or as many as there are from row r on.
  void add_outliers_beside(const std::byte* panel, int half, int64_t r, float* sums) const {
    const OutlierRun* const runs = p_.runs(panel) + half * kCodebookColumns;
    const int64_t rows = std::min(kBeside, rows_.size() - r);
    for (int c = 0; c < kCodebookColumns; ++c) {
      const float* const excess = p_.excess() + runs[c].first;
      const uint16_t* const places = p_.places() + runs[c].first;
      const int64_t count = runs[c].count;
      f32x16 chains[kChains];
      for (f32x16& chain : chains) chain = f32x16::zero();
      const auto add = [&](int64_t i, int chain) __attribute__((always_inline)) {
        chains[chain] = fma(f32x16::broadcast(excess[i]), f32x16::load(beside(r, places[i])),
                            chains[chain]);
      };
      int64_t i = 0;
      for (; i + kChains <= count; i += kChains)
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) add(i + chain, chain);
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain)
        if (i + chain < count) add(i + chain, chain);
      float found[kBeside];
      ((chains[0] + chains[1]) + (chains[2] + chains[3])).store(found);
      for (int64_t own = 0; own < rows; ++own) sums[own * kPanelColumns + c] += found[own];
    }
  }

  const CodebookPanels& p_;
  const InputRows& x_;
  const Epilogue& e_;
  const Range rows_;
  const int64_t row_bytes_, steps_;
  std::byte* const ready_;
  std::byte* const beside_;  // rows of x as outliers of many rows read them; null: no rows
};

}  // namespace penstock
