// Products of weights in codebooks of rows, for every Operand: a Path of gemm_product.h.
//
// Lanes are k, so that one register holds all values of a column, and a look-up is one instruction. For a
// row or two codes become weights in the registers that multiply them, eight columns at a time. For more,
// a slice of eight columns is expanded into L1 first, and all rows take it from there, four by four; their
// lanes wait in the carry. Outliers come last (gemm_codebook_outliers.h). All add in one order (gemm_codebook.h).
#pragma once

#include <type_traits>
#include <utility>

#include "gemm_codebook_operands.h"
#include "gemm_codebook_outliers.h"
#include "gemm_epilogue.h"
#include "gemm_kernels.h"
#include "gemm_product.h"

namespace penstock {

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
  static constexpr bool kIntoL2 = true;
#else
  static constexpr bool kIntoL2 = false;
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
  using Outliers = CodebookOutliers<Operand>;
  static constexpr int64_t kBeside = Outliers::kRows;  // rows whose elements lie together

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
        if (p_.outliers) Outliers(p_, panel).fetch();
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
  PENSTOCK_INLINE void line_steps(const Operand::Codes& codes, int first, const Values<Bits>& values,
                                  Use&& use) const {
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

  // Of eight columns by one or two rows, from codes, which are prefetched into a level of the cache.
  template <int Bits, int Rows>
  void direct(const std::byte* panel, int half, float* sums) const {
    if (kIntoL2 && p_.tuning.stream_ahead >= kAheadInL2) direct<Bits, Rows, 2>(panel, half, sums);
    else direct<Bits, Rows, 1>(panel, half, sums);
  }
  template <int Bits, int Rows, int Level>
  void direct(const std::byte* panel, int half, float* sums) const {
    Values<Bits> values_of[kCodebookColumns];
    f32x16 lanes[Rows][kCodebookColumns];
#pragma GCC unroll 8  // or what is to be in registers is made in memory
    for (int c = 0; c < kCodebookColumns; ++c) {
      values_of[c] = values<Bits>(panel, half * kCodebookColumns + c);
      for (int r = 0; r < Rows; ++r) lanes[r][c] = f32x16::zero();
    }
    // What lies before the codes of a panel is a part of what is read in order.
    if (half == 0)
      for (int64_t at = 0; at < p_.codes_at; at += kLineBytes)
        __builtin_prefetch(panel + at + p_.tuning.stream_ahead, 0, Level == 1 ? 3 : 2);
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
            auto codes = Operand::codes(at);
            prefetch_beside<Level>(at + p_.tuning.stream_ahead, codes);
            line_steps<Bits>(codes, l * kLineSteps<Bits>, values_of[c], add);
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
      if (p_.outliers) Outliers(p_, panel).add(half, row(r), sums + r * kPanelColumns);
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
        bands(some, work, first, steps, carry, line);
        first += steps;
      }
      for (int64_t r = some.first; r < some.last; ++r) {
        f32x16 lanes[kCodebookColumns];
        for (int c = 0; c < kCodebookColumns; ++c)
          lanes[c] = f32x16::load(carry + (r * kCodebookColumns + c) * f32x16::lanes);
        add_lanes(lanes, sums + r * kPanelColumns);
        if (p_.outliers && !beside_)
          Outliers(p_, panel).add(half, row(r), sums + r * kPanelColumns);
      }
    }
    for (int64_t r = 0; beside_ && r < rows_.size(); r += kBeside)
      Outliers(p_, panel).add(half, beside(r, 0), std::min(kBeside, rows_.size() - r),
                              sums + r * kPanelColumns);
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
            line_steps<Bits>(Operand::codes(at + l * kCodebookLine), l * kLineSteps<Bits>, of, put);
          if constexpr (Triple) spare_step(at, of, put);
          at += own.lines * kCodebookLine;
          out += own.steps * kTileStep;
        }
      }
    }
    line += count * own.lines * kCodebookLine;
    return count * own.steps;
  }

  // `next`: the codes of the next slice, which come meanwhile.
  void bands(Range some, const std::byte* tile, int64_t first, int64_t steps, float* carry,
             const std::byte* next) const {
    for (int64_t r = some.first; r < some.last; r += kBandRows) {
      const auto rows = int(std::min<int64_t>(kBandRows, some.last - r));
      for (int c = 0; c < kCodebookColumns; c += kBandColumns) {
        const std::byte* const w = tile + c * Weights::kBytes;
        float* const lanes = carry + (r * kCodebookColumns + c) * f32x16::lanes;
        // A slice's lines are at most twice its steps.
        const int64_t part = r == some.first ? c / kBandColumns : 2;
        const std::byte* const ahead = part < 2 ? next + part * steps * kLineBytes : nullptr;
        const auto some_rows = [&]<int... R>(std::integer_sequence<int, R...>) {
          ((rows == R + 1 ? band<R + 1>(r, w, first, steps, lanes, ahead) : void()), ...);
        };
        some_rows(std::make_integer_sequence<int, kBandRows>());
      }
    }
  }

  // Some rows by some columns that are expanded: [row][8] lanes.
  template <int Rows>
  void band(int64_t first_row, const std::byte* w, int64_t first, int64_t steps, float* carry,
            const std::byte* ahead) const {
    f32x16 lanes[Rows][kBandColumns];
    const auto at = [&](int r, int c) __attribute__((always_inline)) {
      return carry + (r * kCodebookColumns + c) * f32x16::lanes;
    };
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < kBandColumns; ++c)
        lanes[r][c] = first ? f32x16::load(at(r, c)) : f32x16::zero();
    const std::byte* x = row(first_row) + first * Weights::kBytes;
    for (int64_t s = 0; s < steps; ++s, x += Weights::kBytes, w += kTileStep) {
      if (ahead) __builtin_prefetch(ahead + s * kLineBytes, 0, 2);
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

  const CodebookPanels& p_;
  const InputRows& x_;
  const Epilogue& e_;
  const Range rows_;
  const int64_t row_bytes_, steps_;
  std::byte* const ready_;
  std::byte* const beside_;  // rows of x as outliers of many rows read them; null: no rows
};

}  // namespace penstock
