// Products of weights in blocks or groups, for every Operand and Format: a Path of gemm_product.h.
//
// For few bands of rows codes become weights in the registers that multiply them, and a panel is read
// as one stream; a row or two take several panels side by side, so that enough chains of additions are
// in flight. For more rows a slice of the depth of a block's panels is expanded into L1 first, and all
// bands take it from there; their sums wait in the carry.
#pragma once

#include "gemm_block_kernel.h"
#include "gemm_epilogue.h"
#include "gemm_int_quantize.h"
#include "gemm_order.h"
#include "gemm_points_format.h"
#include "gemm_product.h"

namespace penstock {

// What a path asks of a format at run time, so that its loops are compiled once for all of them:
// where codes lie, and the kernels that multiply them. A null kernel is never asked for.
struct BlockFunctions {
  int kept;         // points, as ByteOperand keeps them, exceed what they stand for by this
  bool least;       // groups have a least value, which x's sums multiply
  bool row_scaled;  // a row of weights has a scale, which comes last
  int64_t segment, segment_bytes;  // k of a segment, and bytes of its codes and scales
  int64_t behind;                  // bytes of a segment that lie behind all of the panel's
  int side;                        // panels side by side that a row or two take
  // Turns codes of `runs` runs into what the kernels `expanded` multiply; fetches `ahead` bytes ahead.
  void (*expand)(const std::byte* segment, const std::byte* behind, int64_t runs, int64_t ahead,
                 std::byte* to);
  // From codes, by rows less one: of one panel, and of `side` panels.
  struct FromCodes {
    BlockKernel direct[8], beside[2];
  };
  FromCodes into_l1, into_l2;  // which codes are prefetched into
  BlockKernel expanded[2][3];  // from expanded weights; by panels less one, and pairs of rows less one
};

template <class Operand, class Formats>
class BlockPath {
 public:
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t row_block(const PanelView&) { return kRowBlock; }

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
        functions_(functions_of(p)) {}

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
  // from codes 0.12 0.20 0.22, expanded 0.15, 0.19, 0.23. Weights alone, Zen 4, int4 by 32 and by rows:
  // from codes 0.18 at 8, expanded 0.16 and 0.17 at 16, 0.17 and 0.19 at 32.)
  // The fallback has no such kernels: they are most of what there is to compile, for machines that
  // wait for arithmetic, not for memory.
#if !defined(__AVX2__) && !defined(__aarch64__)
  static constexpr int64_t kDirectBands = 0;
#else
  static constexpr int64_t kDirectBands = Operand::kRounded ? 4 : Operand::kElement == 2 ? 2 : 1;
#endif
#if defined(__AVX512F__)
  // Few multiply float32 where bfloat16 has instructions, so its kernels are those of one stream.
  static constexpr int64_t kDirectRows = Operand::kElement < 4 ? 8 : 2;
  static constexpr int kPanels = 2;
  static constexpr int kRows = Operand::kElement == 4 ? 4 : 6;
#else
  static constexpr int64_t kDirectRows = 4;
  static constexpr int kPanels = 1;
  static constexpr int kRows = 4;
#endif
  static constexpr int kBlockPanels = 2;  // of a gated unit, or side by side
  // Panels for a row or two, of so many chains. (GB/s: Q4_0 alone two 20, one 27; int4 two 17, four 20.)
  static constexpr int side_by_side([[maybe_unused]] int chains) {
#if defined(__AVX512F__)
    return Operand::kRounded || chains > 1 ? 1 : 4;
#elif defined(__AVX2__)
    return Operand::kRounded || chains > 1 ? 1 : 2;
#else
    return 1;
#endif
  }
  static constexpr int kBesideRows = 2;
  // Whether codes are prefetched into L2 where that is asked for (decoded_ahead()).
#if defined(__AVX512F__)
  static constexpr bool kIntoL2 = !Operand::kRounded;
#else
  static constexpr bool kIntoL2 = false;
#endif
  // Rows of the kernel that multiplies so many. Three have one of their own, for drafts of two tokens.
  static constexpr int64_t direct_rows(int64_t rows) { return rows > 4 ? rows + rows % 2 : rows; }
  static constexpr int64_t expanded_rows(int64_t rows) { return rows + rows % 2; }
  static_assert(kRowBlock % 2 == 0);  // there is room for sums of rows that are there twice
  static constexpr int64_t kSlice = 512;  // k that are expanded at once
  static constexpr int64_t kExpandedBytes =
      kSlice / kRunK * ExpandedWeights<Operand, 16, true, false>::kBytes;
  static constexpr int64_t kRowsBytes = 1 << 20;  // of x that stay in a 2 MiB L2
  static constexpr int64_t kLeastRows = 32;

  template <class T>
  void make_row(const T* x, int64_t r) const {
    std::byte* const to = ready_.row(r);
    // Groups matter to x in blocks of files alone: of 16 or 32 k.
    const int64_t k = x_.cols, halves = p_.scaled == kRunK / 2 ? 2 : 1;
    for (int64_t first = 0; first < p_.depth; first += kRunK) {
      const int64_t group = first / kRunK * halves;
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
          if (functions_.least) ready_.addends<float>(r)[group + h] = scale * float(sum[h]);
          else ready_.addends<int32_t>(r)[group + h] = -functions_.kept * sum[h];
        }
      } else {
        const auto there = [&](int64_t at) {
          const int some = int(std::clamp<int64_t>(count - at, 0, f32x16::lanes));
          return some ? f32x16::load_n(x + first + at, some) : f32x16::zero();
        };
        const f32x16 low = there(0), high = there(16);
        if (functions_.least) {
          ready_.addends<float>(r)[group] = halves == 2 ? hsum(low) : hsum(low + high);
          if (halves == 2) ready_.addends<float>(r)[group + 1] = hsum(high);
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

  const std::byte* behind(const std::byte* panel, int64_t segment) const {
    return panel + p_.shifts_at + segment * functions_.behind;
  }

  // Panels of a place and a band, whose sums follow each other every `panel` floats, to the output.
  void finish(int64_t unit, int panels, int64_t row, int64_t rows, const float* sums,
              int64_t panel) const {
    if (!functions_.row_scaled)
      return e_.finish_block(unit, panels, row, rows,
                             [&](int i) { return FloatSums{sums + i * panel, panel}; });
    e_.finish_block(unit, panels, row, rows, [&](int i) {
      const std::byte* const own = p_.panel(unit) + i * p_.panel_bytes + p_.scales_at;
      return RowScaledSums{sums + i * panel, panel, reinterpret_cast<const float*>(own),
                           p_.panel_bytes / int64_t(sizeof(float))};
    });
  }

  void direct(Range units, float* sums) const {
    const int64_t bands = ceil_div(rows_.size(), kDirectRows);
    const int side = rows_.size() <= kBesideRows ? functions_.side : 1;
    const int64_t ahead =
        rows_.size() > 1 ? std::max(p_.tuning.stream_ahead, kLeastAhead) : p_.tuning.stream_ahead;
    const bool far = kIntoL2 && ahead >= kAheadInL2;
    const BlockFunctions::FromCodes& kernels = far ? functions_.into_l2 : functions_.into_l1;
    const Order order(units, p_.per_unit, side);
    for (Place at = order.first(); at.panels; at = order.after(at))
      for (int64_t b = 0; b < bands; ++b) {
        const Range band = even_share(rows_.size(), b, bands);
        const int64_t sums_panel = direct_rows(band.size()) * kPanelColumns;
        for (int i = 0; functions_.row_scaled && i < at.panels; ++i)
          __builtin_prefetch(p_.panel(at.unit) + i * p_.panel_bytes + p_.scales_at);
        for (int i = 0, width; i < at.panels; i += width) {
          width = at.panels - i >= side ? side : 1;
          const std::byte* const panel = p_.panel(at.unit) + i * p_.panel_bytes;
          const BlockKernel kernel = (width > 1 ? kernels.beside : kernels.direct)[band.size() - 1];
          kernel({ready_, band, 0, panel, behind(panel, 0), p_.panel_bytes, p_.depth / kRunK,
                  b ? 0 : ahead, false, sums + i * sums_panel});
        }
        finish(at.unit, at.panels, rows_.first + band.first, band.size(), sums, sums_panel);
      }
  }

  // Some of the rows, counted from the row block's first.
  void expanded(Range some, Range units, std::byte* work, float* carry) const {
    const int64_t slices = ceil_div(p_.depth, kSlice);
    const int64_t bands = ceil_div(some.size(), kRows);
    const Order order(units, p_.per_unit, kPanels, slices);
    const int64_t slice_segments = kSlice / functions_.segment;
    const int64_t slice_bytes = slice_segments * functions_.segment_bytes;
    for (Place at = order.first(); at.panels; at = order.after(at)) {
      const int64_t runs = std::min(kSlice, p_.depth - at.slice * kSlice) / kRunK;
      for (int i = 0; i < at.panels; ++i) {
        const std::byte* const panel = p_.panel(at.unit) + i * p_.panel_bytes;
        functions_.expand(panel + at.slice * slice_bytes, behind(panel, at.slice * slice_segments),
                          runs, slice_bytes, work + i * kExpandedBytes);
      }
      for (int64_t b = 0; b < bands; ++b) {
        const Range band{some.first + b * kRows, std::min(some.first + (b + 1) * kRows, some.last)};
        const int64_t rows = expanded_rows(band.size()), panel = rows * kPanelColumns;
        float* const sums = carry + b * kRows * at.panels * kPanelColumns;
        for (int i = 0, width; i < at.panels; i += width) {
          width = std::min(kPanels, at.panels - i);
          functions_.expanded[width - 1][rows / 2 - 1](
              {ready_, band, at.slice * kSlice, work + i * kExpandedBytes, nullptr,
               kExpandedBytes, runs, 0, at.slice > 0, sums + i * panel});
        }
        if (order.ends(at))
          finish(at.unit, at.panels, rows_.first + band.first, band.size(), sums, panel);
      }
    }
  }

  template <class Source, int Panels, int... Row>
  static constexpr void set_direct(BlockKernel* to, std::integer_sequence<int, Row...>) {
    ((to[Row] = BlockProduct<Source, Operand, direct_rows(Row + 1), Panels, (Row >= 4)>::run), ...);
  }
  template <class Format>
  static constexpr int kSide =
      side_by_side(BlockProduct<DirectWeights<Format, Operand>, Operand, 1, 1, false>::kTogether);
  template <class Format, int Level>
  static constexpr void set_from_codes(BlockFunctions::FromCodes& to) {
    using From = DirectWeights<Format, Operand, Level>;
    set_direct<From, 1>(to.direct, std::make_integer_sequence<int, kDirectRows>());
    set_direct<From, kSide<Format>>(to.beside, std::make_integer_sequence<int, kBesideRows>());
  }
  template <class Source, int Panels, int... Pair>
  static constexpr void set_expanded(BlockKernel* to, std::integer_sequence<int, Pair...>) {
    ((to[Pair] = BlockProduct<Source, Operand, 2 * Pair + 2, Panels, true>::run), ...);
  }
  template <class Format>
  static constexpr BlockFunctions make_functions() {
    using To = Expanded<Format, Operand>;
    BlockFunctions f{};
    if constexpr (Format::kWhole || !Operand::kRounded) {  // else nobody asks for them
      if constexpr (Operand::kRounded) f.kept = Operand::template kept_offset<Format>();
      f.least = Format::kLeast;
      f.row_scaled = row_scaled<Format>();
      f.segment = Format::kSegment;
      f.segment_bytes = Format::kSegmentBytes;
      f.behind = behind_bytes<Format>();
      f.side = kSide<Format>;
      f.expand = expand_runs<Format, Operand>;
      if constexpr (kDirectBands > 0) {
        set_from_codes<Format, 1>(f.into_l1);
        if constexpr (kIntoL2) set_from_codes<Format, 2>(f.into_l2);
      }
      set_expanded<To, 1>(f.expanded[0], std::make_integer_sequence<int, kRows / 2>());
      set_expanded<To, kPanels>(f.expanded[kPanels - 1], std::make_integer_sequence<int, kRows / 2>());
    }
    return f;
  }
  static const BlockFunctions& functions_of(const PanelView& p) {
    return *Formats::with(p, []<class Format>(Format) { return &kFunctions<Format>; });
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
