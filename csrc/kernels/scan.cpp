#include "scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int kLanes = f32x16::lanes;
static_assert(kTileColumns == kLanes);
constexpr float kLeastSquare = 1e-6f;  // added to the square of a key's length

// A sum over the rows of a tile: row i is in part i % 4.
struct Sums {
  f32x16 parts[4] = {f32x16::zero(), f32x16::zero(), f32x16::zero(), f32x16::zero()};
  PENSTOCK_INLINE f32x16 total() const { return (parts[0] + parts[1]) + (parts[2] + parts[3]); }
};

// f(row, part) for all rows of a tile.
template <class F>
PENSTOCK_INLINE void each_row(int rows, F f) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) {
    f(i, 0);
    f(i + 1, 1);
    f(i + 2, 2);
    f(i + 3, 3);
  }
  for (int part = 0; i < rows; ++i, ++part) f(i, part);
}

// A column of n rows, at most a register's lanes; the other lanes are zeros.
PENSTOCK_INLINE f32x16 gather(const Array& x, int64_t first, int n, int64_t column) {
  alignas(64) float values[kLanes] = {};
  for (int i = 0; i < n; ++i) values[i] = x.row<const float>(first + i)[column];
  return f32x16::load(values);
}

// to[i] = x[i] divided by the length of x, times scale.
PENSTOCK_INLINE void to_length(const float* x, int n, float scale, float* to) {
  f32x16 squares = f32x16::zero();
  for (int i = 0; i < n; i += kLanes) {
    const f32x16 v = f32x16::load_n(x + i, std::min(kLanes, n - i));
    squares = fma(v, v, squares);
  }
  const f32x16 by = f32x16::broadcast(1.0f / std::sqrt(hsum(squares) + kLeastSquare));
  for (int i = 0; i < n; i += kLanes) {
    const int some = std::min(kLanes, n - i);
    (f32x16::load_n(x + i, some) * by * f32x16::broadcast(scale)).store_n(to + i, some);
  }
}

// The columns of one tile: which of a head's they are.
struct Columns {
  int head;
  int first;
  int n;  // at most a register's lanes

  Columns(const StateGeometry& at, int unit)
      : head(unit / tiles_of(at.columns)),
        first(unit % tiles_of(at.columns) * kLanes),
        n(std::min(kLanes, at.columns - first)) {}
};

// A body is what a walk does with the tokens of one head. gates() makes ready up to kLanes rows of the
// step, of which token() then takes each in order, through some of the head's columns; replay() does
// the same to the state with a row of the log, which write_log() has written of such a token.

class Delta {
 public:
  using Args = GatedDeltaArgs;

  Delta(const Args& args, int head)
      : args_(args),
        head_(head),
        key_head_(head / (args.state.at.heads / args.key_heads)),
        rows_(args.state.at.rows),
        width_(args.state.at.columns),
        keys_(int64_t(args.key_heads) * rows_),
        values_(int64_t(args.state.at.heads) * width_),
        scale_(1.0f / std::sqrt(float(rows_))),
        rate_(exp(f32x16::broadcast(args.a_log[head]))) {}

  void gates(int64_t first, int n) {
    const f32x16 a = gather(args_.ba, first, n, args_.state.at.heads + head_) +
                     f32x16::broadcast(args_.dt_bias[head_]);
    exp(f32x16::zero() - rate_ * softplus(a)).store(decay_);
    sigmoid(gather(args_.ba, first, n, head_)).store(beta_);
  }

  void token(float* tile, const Columns& at, int64_t row, int i) {
    const float* const in = args_.qkv.row<const float>(row);
    to_length(in + int64_t(key_head_) * rows_, rows_, scale_, q_);
    to_length(in + keys_ + int64_t(key_head_) * rows_, rows_, 1.0f, k_);
    const f32x16 decay = f32x16::broadcast(decay_[i]);
    const f32x16 change = change_of(tile, k_, in + 2 * keys_, at, decay, beta_[i]);
    Sums read;
    each_row(rows_, [&](int r, int part) {
      read.parts[part] = fma(f32x16::broadcast(q_[r]), corrected(tile, r, k_, change, decay),
                             read.parts[part]);
    });
    read.total().store_n(args_.out.row<float>(row) + column(at), at.n);
  }

  // Keys, values, decays and betas.
  void write_log(float* log, int64_t row, int i) {
    const float* const in = args_.qkv.row<const float>(row);
    if (head_ % (args_.state.at.heads / args_.key_heads) == 0)
      to_length(in + keys_ + int64_t(key_head_) * rows_, rows_, 1.0f,
                log + int64_t(key_head_) * rows_);
    std::memcpy(log + keys_ + int64_t(head_) * width_, in + 2 * keys_ + int64_t(head_) * width_,
                size_t(width_) * sizeof(float));
    log[keys_ + values_ + head_] = decay_[i];
    log[keys_ + values_ + args_.state.at.heads + head_] = beta_[i];
  }
  void replay(float* tile, const Columns& at, const float* log) {
    const float* const k = log + int64_t(key_head_) * rows_;
    const f32x16 decay = f32x16::broadcast(log[keys_ + values_ + head_]);
    const float beta = log[keys_ + values_ + args_.state.at.heads + head_];
    const f32x16 change = change_of(tile, k, log + keys_, at, decay, beta);
    each_row(rows_, [&](int r, int) { corrected(tile, r, k, change, decay); });
  }

 private:
  int64_t column(const Columns& at) const { return int64_t(head_) * width_ + at.first; }

  // beta (v - decay k^T S)
  PENSTOCK_INLINE f32x16 change_of(const float* tile, const float* k, const float* values,
                                   const Columns& at, f32x16 decay, float beta) const {
    Sums known;
    each_row(rows_, [&](int r, int part) {
      known.parts[part] =
          fma(f32x16::broadcast(k[r]), f32x16::load(tile + r * kLanes), known.parts[part]);
    });
    const f32x16 v = f32x16::load_n(values + column(at), at.n);
    return f32x16::broadcast(beta) * (v - decay * known.total());
  }

  PENSTOCK_INLINE f32x16 corrected(float* tile, int r, const float* k, f32x16 change,
                                   f32x16 decay) const {
    const f32x16 state =
        fma(f32x16::broadcast(k[r]), change, decay * f32x16::load(tile + r * kLanes));
    state.store(tile + r * kLanes);
    return state;
  }

  const Args& args_;
  int head_, key_head_, rows_, width_;
  int64_t keys_, values_;  // columns of all keys, and of all values
  float scale_;
  f32x16 rate_;
  alignas(64) float decay_[kLanes];
  alignas(64) float beta_[kLanes];
  alignas(64) float q_[kMostTileRows];
  alignas(64) float k_[kMostTileRows];
};

class Selective {
 public:
  using Args = SelectiveScanArgs;

  Selective(const Args& args, int head)
      : args_(args),
        head_(head),
        group_(head / (args.state.at.heads / args.groups)),
        rows_(args.state.at.rows),
        width_(args.state.at.columns),
        all_x_(int64_t(args.state.at.heads) * width_),
        all_b_(int64_t(args.groups) * rows_),
        rate_(exp(f32x16::broadcast(args.a_log[head]))) {}

  void gates(int64_t first, int n) {
    const f32x16 least = f32x16::broadcast(args_.least_step);
    const f32x16 most = f32x16::broadcast(args_.most_step);
    f32x16 step = softplus(gather(args_.dt, first, n, head_) +
                           f32x16::broadcast(args_.dt_bias[head_]));
    step = select_less(step, least, least, step);
    step = select_less(most, step, most, step);
    step.store(step_);
    exp(f32x16::zero() - rate_ * step).store(decay_);
  }

  void token(float* tile, const Columns& at, int64_t row, int i) {
    const float* const in = args_.xbc.row<const float>(row);
    const float* const c = in + all_x_ + all_b_ + int64_t(group_) * rows_;
    const f32x16 x = f32x16::load_n(in + column(at), at.n);
    const f32x16 u = f32x16::broadcast(step_[i]) * x, decay = f32x16::broadcast(decay_[i]);
    Sums read;
    each_row(rows_, [&](int r, int part) {
      const f32x16 state =
          updated(tile, r, in + all_x_ + int64_t(group_) * rows_, u, decay);
      read.parts[part] = fma(f32x16::broadcast(c[r]), state, read.parts[part]);
    });
    fma(f32x16::broadcast(args_.d[head_]), x, read.total())
        .store_n(args_.out.row<float>(row) + column(at), at.n);
  }

  // B, u and decays.
  void write_log(float* log, int64_t row, int i) {
    const float* const in = args_.xbc.row<const float>(row);
    const int64_t b = int64_t(group_) * rows_, x = int64_t(head_) * width_;
    if (head_ % (args_.state.at.heads / args_.groups) == 0)
      std::memcpy(log + b, in + all_x_ + b, size_t(rows_) * sizeof(float));
    for (int j = 0; j < width_; ++j) log[all_b_ + x + j] = step_[i] * in[x + j];
    log[all_b_ + all_x_ + head_] = decay_[i];
  }
  void replay(float* tile, const Columns& at, const float* log) {
    const f32x16 u = f32x16::load_n(log + all_b_ + column(at), at.n);
    const f32x16 decay = f32x16::broadcast(log[all_b_ + all_x_ + head_]);
    each_row(rows_, [&](int r, int) {
      updated(tile, r, log + int64_t(group_) * rows_, u, decay);
    });
  }

 private:
  int64_t column(const Columns& at) const { return int64_t(head_) * width_ + at.first; }

  PENSTOCK_INLINE f32x16 updated(float* tile, int r, const float* b, f32x16 u,
                                 f32x16 decay) const {
    const f32x16 state = fma(u, f32x16::broadcast(b[r]), decay * f32x16::load(tile + r * kLanes));
    state.store(tile + r * kLanes);
    return state;
  }

  const Args& args_;
  int head_, group_, rows_, width_;
  int64_t all_x_, all_b_;  // columns of all heads' x, and of all groups' B
  f32x16 rate_;
  alignas(64) float decay_[kLanes];
  alignas(64) float step_[kLanes];
};

// All tokens of one sequence through one tile of its state.
template <class Body>
void walk_tile(const typename Body::Args& args, const StepView& step, int sequence, int unit,
               float* copy) {
  const StateLayer& state = args.state;
  const StateSpan span(step, sequence);
  const Columns at(state.at, unit);
  Body body(args, at.head);
  float* tile = state.tile(span.slot, unit);
  if (span.seen == 0) std::memset(tile, 0, state.tile_bytes());
  auto snapshots = snapshots_of(step, sequence);
  const auto at_border = [&](int64_t position) {  // that many tokens are in the tile
    if (!snapshots.empty() && snapshots.front().tokens == position) {
      std::memcpy(state.tile(snapshots.front().slot, unit), tile, state.tile_bytes());
      snapshots = snapshots.subspan(1);
    }
    if (position == span.stored && position < span.end)
      tile = static_cast<float*>(std::memcpy(copy, tile, state.tile_bytes()));
  };
  at_border(span.seen);
  for (int64_t p = span.seen; p < span.start; ++p) {
    body.replay(tile, at, state.log_row(span.slot, p));
    at_border(p + 1);
  }
  for (int64_t p = span.start; p < span.end; p += kLanes) {
    const int n = int(std::min<int64_t>(kLanes, span.end - p));
    const int64_t row = span.row + (p - span.start);
    body.gates(row, n);
    for (int i = 0; i < n; ++i) {
      body.token(tile, at, row + i, i);
      at_border(p + i + 1);
    }
  }
}

// Log rows of one head of a sequence.
template <class Body>
void log_head(const typename Body::Args& args, const StepView& step, int sequence, int head) {
  const StateSpan span(step, sequence);
  Body body(args, head);
  for (int64_t p = std::max(span.stored, span.start); p < span.end; ++p) {
    const int64_t row = span.row + (p - span.start);
    body.gates(row, 1);
    body.write_log(args.state.log_row(span.slot, p), row, 0);
  }
}

template <class Body>
void walk(const typename Body::Args& args, const StepView& step, const Worker& worker) {
  const StateGeometry& at = args.state.at;
  const int64_t units = int64_t(at.heads) * tiles_of(at.columns);
  float* const copy = reinterpret_cast<float*>(worker.scratch);
  Tickets::Phase phase = worker.tickets->open(worker, units * step.sequences, 1);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task)
      walk_tile<Body>(args, step, int(task / units), int(task % units), copy);
  const int32_t* const tentative = step.states.tentative;
  if (std::none_of(tentative, tentative + step.sequences, [](int32_t n) { return n > 0; })) return;
  worker.barrier->wait(worker);  // a row of the log may take the place of one that was replayed
  const Share mine = share(int64_t(at.heads) * step.sequences, worker);
  for (int64_t task = mine.begin; task < mine.end; ++task)
    log_head<Body>(args, step, int(task / at.heads), int(task % at.heads));
}

}  // namespace

size_t scan_scratch_bytes(const StateLayer& state) { return state.tile_bytes(); }

void gated_delta(const GatedDeltaArgs& args, const StepView& step, const Worker& worker) {
  walk<Delta>(args, step, worker);
}

void selective_scan(const SelectiveScanArgs& args, const StepView& step, const Worker& worker) {
  walk<Selective>(args, step, worker);
}

}  // namespace penstock
