#include "adapters.h"

#include <algorithm>
#include <cstring>

#include "../bf16_dots.h"
#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int64_t kAdapterLine = 64;  // bytes: sixteen floats, or pairs of bf16
constexpr int kAdapterChains = 4;
// Rows that a line of weights is multiplied by once it is loaded.
constexpr int kAdapterTile = 4;
// Rows of a unit of `down`: few, so that threads share a batch of few adapters.
constexpr int64_t kAdapterChunk = 2 * kAdapterTile;
// Panels of a unit of `up`.
constexpr int64_t kAdapterPanels = 4;

int64_t adapter_panels(int64_t columns) { return (columns + kAdapterColumns - 1) / kAdapterColumns; }

// Steps of k of a line each: what it is multiplied by, and how.
struct FloatSteps {
  using X = float;
  static constexpr int64_t kColumns = 1;
  static PENSTOCK_INLINE f32x16 add(f32x16 sum, const std::byte* line, const float* x) {
    return fma(f32x16::load(reinterpret_cast<const float*>(line)), f32x16::broadcast(*x), sum);
  }
};

template <class Input>
struct PairSteps {
  using X = Input;
  static constexpr int64_t kColumns = 2;
  static PENSTOCK_INLINE f32x16 add(f32x16 sum, const std::byte* line, const Input* x) {
    const f32x16 pairs = f32x16::load(reinterpret_cast<const float*>(line));
#if defined(__AVX512BF16__)
    if constexpr (sizeof(Input) == 2) {
      uint32_t pair;
      std::memcpy(&pair, x, sizeof pair);
      return dpbf16(sum, pairs, pair);
    }
#endif
    sum = fma(low_bf16(pairs), f32x16::broadcast(to_f32(x[0])), sum);
    return fma(high_bf16(pairs), f32x16::broadcast(to_f32(x[1])), sum);
  }
};

template <class Steps, int Rows>
void down_tile(const std::byte* panel, int64_t k, const typename Steps::X* const* x, float* const* low,
               int columns, float scale) {
  f32x16 sums[Rows][kAdapterChains];
  for (auto& row : sums)
    for (f32x16& sum : row) sum = f32x16::zero();
  const int64_t steps = k / Steps::kColumns;
  int64_t s = 0;
  for (; s + kAdapterChains <= steps; s += kAdapterChains)
    for (int c = 0; c < kAdapterChains; ++c)
      for (int r = 0; r < Rows; ++r)
        sums[r][c] = Steps::add(sums[r][c], panel + (s + c) * kAdapterLine,
                                x[r] + (s + c) * Steps::kColumns);
  for (int c = 0; s < steps; ++s, ++c)
    for (int r = 0; r < Rows; ++r)
      sums[r][c] =
          Steps::add(sums[r][c], panel + s * kAdapterLine, x[r] + s * Steps::kColumns);
  if (Steps::kColumns * steps < k) {  // the last of an odd number, beside a zero
    for (int r = 0; r < Rows; ++r) {
      const typename Steps::X last[2] = {x[r][k - 1], {}};
      sums[r][kAdapterChains - 1] =
          Steps::add(sums[r][kAdapterChains - 1], panel + steps * kAdapterLine, last);
    }
  }
  const f32x16 by = f32x16::broadcast(scale);
  for (int r = 0; r < Rows; ++r)
    (((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3])) * by).store_n(low[r], columns);
}

template <class Steps>
void down_rows(const std::byte* panel, int64_t k, const AdapterDownArgs& args, const int32_t* rows,
               int64_t count, int64_t column, int columns, float scale) {
  for (int64_t first = 0; first < count;) {
    const typename Steps::X* x[kAdapterTile];
    float* low[kAdapterTile];
    const int some = int(std::min<int64_t>(kAdapterTile, count - first));
    for (int r = 0; r < some; ++r) {
      x[r] = args.x.row<const typename Steps::X>(rows[first + r]);
      low[r] = args.low.row<float>(rows[first + r]) + column;
    }
    switch (some) {
      case 4: down_tile<Steps, 4>(panel, k, x, low, columns, scale); break;
      case 3: down_tile<Steps, 3>(panel, k, x, low, columns, scale); break;
      case 2: down_tile<Steps, 2>(panel, k, x, low, columns, scale); break;
      default: down_tile<Steps, 1>(panel, k, x, low, columns, scale);
    }
    first += some;
  }
}

template <class T, int Rows, int Panels>
void up_tile(const T* panels, int64_t rank, const float* const* low, float* const* out,
             int columns) {
  f32x16 sums[Rows][Panels];
  for (auto& row : sums)
    for (f32x16& sum : row) sum = f32x16::zero();
  for (int64_t j = 0; j < rank; ++j)
    for (int p = 0; p < Panels; ++p) {
      const f32x16 w = f32x16::load(panels + (p * rank + j) * kAdapterColumns);
      for (int r = 0; r < Rows; ++r)
        sums[r][p] = fma(w, f32x16::broadcast(low[r][j]), sums[r][p]);
    }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) {
      float* const to = out[r] + p * kAdapterColumns;
      const int some = std::min<int>(kAdapterColumns, columns - p * int(kAdapterColumns));
      (f32x16::load_n(to, some) + sums[r][p]).store_n(to, some);
    }
}

template <class T, int Rows>
void up_panels(const T* panels, int64_t count, int64_t rank, const float* const* low,
               float* const* out, int columns) {
  switch (count) {
    case 4: up_tile<T, Rows, 4>(panels, rank, low, out, columns); break;
    case 3: up_tile<T, Rows, 3>(panels, rank, low, out, columns); break;
    case 2: up_tile<T, Rows, 2>(panels, rank, low, out, columns); break;
    default: up_tile<T, Rows, 1>(panels, rank, low, out, columns);
  }
}

// `column` of out, and `from` of low, are the part's first.
template <class T>
void up_rows(const T* panels, int64_t count, int64_t rank, const AdapterUpArgs& args,
             const int32_t* rows, int64_t number, int64_t from, int64_t column, int columns) {
  for (int64_t first = 0; first < number;) {
    const float* low[kAdapterTile];
    float* out[kAdapterTile];
    const int some = int(std::min<int64_t>(kAdapterTile, number - first));
    for (int r = 0; r < some; ++r) {
      low[r] = args.low.row<const float>(rows[first + r]) + from;
      out[r] = args.out.row<float>(rows[first + r]) + column;
    }
    switch (some) {
      case 4: up_panels<T, 4>(panels, count, rank, low, out, columns); break;
      case 3: up_panels<T, 3>(panels, count, rank, low, out, columns); break;
      case 2: up_panels<T, 2>(panels, count, rank, low, out, columns); break;
      default: up_panels<T, 1>(panels, count, rank, low, out, columns);
    }
    first += some;
  }
}

// Shares the units of all runs: `units(run)` are those of one, and `work(run, unit)` does one.
template <class Units, class Work>
void share_runs(const AdapterRows& rows, const Worker& worker, Units units, Work work) {
  int64_t all = 0;
  for (const AdapterRows::Run& run : rows.runs) all += units(run);
  if (all == 0) return;
  Tickets::Phase phase = worker.tickets->open(worker, all, 1);
  for (Share some = phase.next(); !some.empty(); some = phase.next()) {
    int64_t before = 0;
    for (const AdapterRows::Run& run : rows.runs) {
      const int64_t own = units(run);
      const int64_t end = std::min(some.end - before, own);
      for (int64_t unit = std::max<int64_t>(some.begin - before, 0); unit < end; ++unit)
        work(run, unit);
      before += own;
      if (before >= some.end) break;
    }
  }
}

}  // namespace

size_t adapter_down_bytes(Elem elem, int64_t rank, int64_t k) {
  const int64_t steps = elem == Elem::bf16 ? (k + 1) / 2 : k;
  return size_t(adapter_panels(rank) * steps * kAdapterLine);
}

size_t adapter_up_bytes(Elem elem, int64_t rank, int64_t n) {
  return size_t(adapter_panels(n) * kAdapterColumns * rank) * elem_bytes(elem);
}

void adapter_down(const AdapterDownArgs& args, const AdapterRows& rows, const Worker& worker) {
  const int64_t k = args.x.cols;
  const size_t part_bytes = adapter_down_bytes(args.elem, args.rank, k);
  const size_t panel_bytes = adapter_down_bytes(args.elem, kAdapterColumns, k);
  const auto chunks = [](const AdapterRows::Run& run) {
    return (run.end - run.first + kAdapterChunk - 1) / kAdapterChunk;
  };
  const auto scales = [&](const AdapterRows::Run& run) {
    return args.scales + run.slot * args.parts;
  };
  share_runs(
      rows, worker,
      [&](const AdapterRows::Run& run) {
        int64_t panels = 0;
        for (int64_t i = 0; i < args.parts; ++i) panels += adapter_panels(scales(run)[i].rank);
        return panels * chunks(run);
      },
      [&](const AdapterRows::Run& run, int64_t unit) {
        int64_t panel = unit / chunks(run), part = 0;
        for (; panel >= adapter_panels(scales(run)[part].rank); ++part)
          panel -= adapter_panels(scales(run)[part].rank);
        const AdapterScale own = scales(run)[part];
        const std::byte* const weights =
            args.weights + size_t(run.slot * args.parts + part) * part_bytes +
            size_t(panel) * panel_bytes;
        const int64_t first = run.first + unit % chunks(run) * kAdapterChunk;
        const int64_t count = std::min<int64_t>(kAdapterChunk, run.end - first);
        const int64_t column = part * args.rank + panel * kAdapterColumns;
        const int columns =
            int(std::min<int64_t>(kAdapterColumns, own.rank - panel * kAdapterColumns));
        const auto with = [&](auto steps) {
          down_rows<decltype(steps)>(weights, k, args, rows.rows.data() + first, count, column,
                                     columns, own.scale);
        };
        if (args.elem == Elem::f32)
          with(FloatSteps{});
        else if (args.x.elem == Elem::bf16)
          with(PairSteps<bf16>{});
        else
          with(PairSteps<float>{});
      });
}

void adapter_up(const AdapterUpArgs& args, const AdapterRows& rows, const Worker& worker) {
  size_t slot_bytes = 0;
  for (const int64_t n : args.columns) slot_bytes += adapter_up_bytes(args.elem, args.rank, n);
  const auto scale = [&](const AdapterRows::Run& run, size_t part) {
    return args.scales[run.slot * args.parts + args.at + int64_t(part)];
  };
  const auto groups = [&](const AdapterRows::Run& run, size_t part) -> int64_t {
    if (scale(run, part).rank == 0) return 0;
    return (adapter_panels(args.columns[part]) + kAdapterPanels - 1) / kAdapterPanels;
  };
  share_runs(
      rows, worker,
      [&](const AdapterRows::Run& run) {
        int64_t units = 0;
        for (size_t part = 0; part < args.columns.size(); ++part) units += groups(run, part);
        return units;
      },
      [&](const AdapterRows::Run& run, int64_t unit) {
        size_t part = 0;
        int64_t column = 0;
        const std::byte* weights = args.weights + size_t(run.slot) * slot_bytes;
        for (; unit >= groups(run, part); ++part) {
          unit -= groups(run, part);
          column += args.columns[part];
          weights += adapter_up_bytes(args.elem, args.rank, args.columns[part]);
        }
        const int64_t rank = scale(run, part).rank, panel = unit * kAdapterPanels;
        const int64_t panels =
            std::min(kAdapterPanels, adapter_panels(args.columns[part]) - panel);
        const int64_t first = panel * kAdapterColumns;
        const int columns =
            int(std::min(kAdapterPanels * kAdapterColumns, args.columns[part] - first));
        const auto with = [&](const auto* values) {
          up_rows(values + first * rank, panels, rank, args, rows.rows.data() + run.first,
                  run.end - run.first, (args.at + int64_t(part)) * args.rank, column + first,
                  columns);
        };
        if (args.elem == Elem::f32)
          with(reinterpret_cast<const float*>(weights));
        else
          with(reinterpret_cast<const bf16*>(weights));
      });
}

}  // namespace penstock
