// Products of weights in codebooks of rows, for every Operand: a Path of gemm_product.h.
//
// Lanes are k, so that one register holds all values of a column, and a look-up is one instruction. Codes
// become weights in the registers that multiply them by a few rows, for these again for the next ones:
// look-ups and products are of different units, and so many rows hide the look-ups (16 rows take 0.8 of
// what they took when a slice of weights was expanded into L1 for all of them, 256 rows 0.87, on Zen 4).
// Outliers come last (gemm_codebook_outliers.h). All add in one order (gemm_codebook.h).
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
    return std::min(rows, kRowBlock) * 2 * kPanelColumns * int64_t(sizeof(float));
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
#if defined(__AVX512F__)
  static constexpr int kSomeRows = 4;
  static constexpr bool kIntoL2 = true;
#else
  static constexpr int kSomeRows = 2;
  static constexpr bool kIntoL2 = false;
#endif

  template <int Bits>
  static constexpr int kLineSteps = int(codebook_stretch(Bits, false).steps);
  using Outliers = CodebookOutliers<Operand>;
  static constexpr int64_t kBeside = Outliers::kRows;  // rows whose elements lie together

  // An odd number of cache lines, so that rows do not meet in one set.
  static int64_t row_bytes(const CodebookPanels& p) {
    const int64_t bytes = p.steps() * Operand::kStepBytes;
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
    float* const sums = reinterpret_cast<float*>(work);
    const int64_t panel_floats = rows_.size() * kPanelColumns;
    for (int64_t unit = units.first; unit < units.last; ++unit) {
      for (int i = 0; i < p_.per_unit; ++i) {
        const std::byte* const panel = p_.panel(unit) + i * p_.panel_bytes;
        if (p_.outliers) Outliers(p_, panel).fetch();
        for (int half = 0; half < 2; ++half) {
          float* const own = sums + i * panel_floats + half * kCodebookColumns;
          look_up<Bits>(panel, half, own);
          add_outliers(panel, half, own);
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

  // Of eight columns by all rows, a few at a time, from codes. The first rows have these prefetched into
  // a level of the cache.
  template <int Bits>
  void look_up(const std::byte* panel, int half, float* sums) const {
    const bool into_l2 = kIntoL2 && p_.tuning.stream_ahead >= kAheadInL2;
    for (int64_t r = 0; r < rows_.size(); r += kSomeRows) {
      const auto rows = int(std::min<int64_t>(kSomeRows, rows_.size() - r));
      float* const own = sums + r * kPanelColumns;
      const auto some_rows = [&]<int... R>(std::integer_sequence<int, R...>) {
        ((rows != R + 1 ? void()
          : r           ? some<Bits, R + 1, 0>(panel, half, r, own)
          : into_l2     ? some<Bits, R + 1, 2>(panel, half, r, own)
                        : some<Bits, R + 1, 1>(panel, half, r, own)),
         ...);
      };
      some_rows(std::make_integer_sequence<int, kSomeRows>());
    }
  }
  template <int Bits, int Rows, int Level>
  void some(const std::byte* panel, int half, int64_t first_row, float* sums) const {
    // What lies before a panel's codes is a part of what is read in order: without it, as many lines of codes
    // would never be asked for (Zen 4, 4 bits, 2048 k: 19.3 and 22.6 GB/s).
    if (Level && half == 0)
      for (int64_t at = 0; at < p_.codes_at; at += kLineBytes)
        __builtin_prefetch(panel + at + p_.tuning.stream_ahead, 0, Level == 1 ? 3 : 2);
    // As many columns as registers have sums of.
    constexpr int kColumns = Rows > 2 ? kCodebookColumns / 2 : kCodebookColumns;
    f32x16 lanes[Rows][kCodebookColumns];
    for (int c = 0; c < kCodebookColumns; c += kColumns)
      some_columns<Bits, Rows, Level, kColumns>(panel, half, first_row, c, lanes);
    for (int r = 0; r < Rows; ++r) add_lanes(lanes[r], sums + r * kPanelColumns);
  }
  template <int Bits, int Rows, int Level, int Columns>
  PENSTOCK_INLINE void some_columns(const std::byte* panel, int half, int64_t first_row,
                                    int first_column, f32x16 (&found)[Rows][kCodebookColumns]) const {
    Values<Bits> values_of[Columns];
    f32x16 lanes[Rows][Columns];
#pragma GCC unroll 8  // or what is to be in registers is made in memory
    for (int c = 0; c < Columns; ++c) {
      values_of[c] = values<Bits>(panel, half * kCodebookColumns + first_column + c);
      for (int r = 0; r < Rows; ++r) lanes[r][c] = f32x16::zero();
    }
    const std::byte* line =
        panel + p_.codes_at + half * p_.half_bytes + first_column * kLineBytes;
    const std::byte* x = row(first_row);
    const auto stretches = [&]<bool Triple>(int64_t count, std::bool_constant<Triple>)
                               __attribute__((always_inline)) {
      constexpr CodebookStretch own = codebook_stretch(Bits, Triple);
      const auto each_column = [&](auto&& of_column) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c)
          of_column(c, [&, c](int step, const Weights& w) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int r = 0; r < Rows; ++r)
              Operand::add(lanes[r][c], w, x + r * row_bytes_ + step * Operand::kStepBytes);
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
        x += own.steps * Operand::kStepBytes;
      }
    };
    if constexpr (Bits == 3) stretches(p_.triples, std::true_type());
    stretches(p_.singles, std::false_type());
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) found[r][first_column + c] = lanes[r][c];
  }

  // What outliers add, once all else is summed.
  void add_outliers(const std::byte* panel, int half, float* sums) const {
    if (!p_.outliers) return;
    const Outliers outliers(p_, panel);
    if (!beside_) {
      for (int64_t r = 0; r < rows_.size(); ++r) outliers.add(half, row(r), sums + r * kPanelColumns);
      return;
    }
    for (int64_t r = 0; r < rows_.size(); r += kBeside)
      outliers.add(half, beside(r, 0), std::min(kBeside, rows_.size() - r), sums + r * kPanelColumns);
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
