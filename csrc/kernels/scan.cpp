#include "scan.h"

#include "scan_walk.h"

namespace penstock {
namespace {

constexpr float kLeastSquare = 1e-6f;  // added to the square of a key's length

// Whether the sum that the next token needs of the state is made while this token changes it, and not
// in a pass of its own: where two sums of a tile fit the registers.
#if defined(__aarch64__)
constexpr bool kKnowsAhead = false;
#else
constexpr bool kKnowsAhead = true;
#endif

// to[i] = x[i] divided by the length of x, times scale; and zeros up to whole registers.
PENSTOCK_INLINE void to_length(const float* x, int n, float scale, float* to) {
  f32x16 squares = f32x16::zero();
  for (int i = 0; i < n; i += kLanes) {
    const f32x16 v = load_up_to(x + i, n - i);
    squares = fma(v, v, squares);
  }
  const f32x16 by = f32x16::broadcast(1.0f / std::sqrt(hsum(squares) + kLeastSquare));
  for (int i = 0; i < n; i += kLanes)
    (load_up_to(x + i, n - i) * by * f32x16::broadcast(scale)).store(to + i);
}

// Keys write and queries read; the columns that enter are values.
class Delta : public Head {
 public:
  using Args = GatedDeltaArgs;
  static constexpr bool kStreams = false;  // a first pass over a tile brings it into L1

  Delta(const Args& args, int head, std::byte* scratch)
      : Head(args.state.at, args.key_heads, head, args.a_log, scratch, args.tiled),
        args_(args),
        scale_(1.0f / std::sqrt(float(rows_))) {}

  void fetch(int64_t row, int first, int columns) const {
    const float* const x = args_.qkv.row<const float>(row);
    penstock::fetch(query(x), rows_);
    penstock::fetch(key(x), rows_);
    penstock::fetch(values(x) + first, columns);
    penstock::fetch(args_.out.row<float>(row) + column() + first, columns);
  }

  void ready(int64_t first, int n) {
    const f32x16 a = gather(args_.ba, first, n, args_.state.at.heads + head_) +
                     f32x16::broadcast(args_.dt_bias[head_]);
    exp(f32x16::zero() - rate_ * softplus(a)).store(decay_);
    sigmoid(gather(args_.ba, first, n, head_)).store(beta_);
    for (int i = 0; i < n; ++i) {
      const float* const x = args_.qkv.row<const float>(first + i);
      to_length(query(x), rows_, scale_, out(i));
      to_length(key(x), rows_, 1.0f, in(i));
    }
  }

  void walk(float* tile, const TileColumns& at, int64_t first, int n) {
    f32x16 known = known_of(tile, in(0));
    for (int i = 0; i < n; ++i) {
      const int64_t row = first + i;
      const f32x16 decay = f32x16::broadcast(decay_[i]);
      const f32x16 v = load_up_to(values(args_.qkv.row<const float>(row)) + at.first, at.n);
      const f32x16 change = f32x16::broadcast(beta_[i]) * (v - decay * known);
      const bool last = i + 1 == n;
      Sums read, next;
      if (last || !kKnowsAhead)
        correct(tile, in(i), change, decay, [&](int r, int part, f32x16 state) {
          read.parts[part] = fma(f32x16::broadcast(out(i)[r]), state, read.parts[part]);
        });
      else
        correct(tile, in(i), change, decay, [&](int r, int part, f32x16 state) {
          read.parts[part] = fma(f32x16::broadcast(out(i)[r]), state, read.parts[part]);
          next.parts[part] = fma(f32x16::broadcast(in(i + 1)[r]), state, next.parts[part]);
        });
      if (!last) known = kKnowsAhead ? next.total() : known_of(tile, in(i + 1));
      store_up_to(read.total(), args_.out.row<float>(row) + column() + at.first, at.n);
    }
  }

  // Keys, values, decays and betas.
  void write_log(float* log, int64_t row) {
    if (leads_) std::memcpy(log + this->row(), in(0), size_t(rows_) * sizeof(float));
    std::memcpy(log + all_rows_ + column(), values(args_.qkv.row<const float>(row)),
                size_t(width_) * sizeof(float));
    log[all_rows_ + all_columns_ + head_] = decay_[0];
    log[all_rows_ + all_columns_ + args_.state.at.heads + head_] = beta_[0];
  }
  void replay(float* tile, const TileColumns& at, const float* log) {
    const float* const k = log + row();
    const f32x16 decay = f32x16::broadcast(log[all_rows_ + all_columns_ + head_]);
    const float beta = log[all_rows_ + all_columns_ + args_.state.at.heads + head_];
    const f32x16 v = load_up_to(log + all_rows_ + column() + at.first, at.n);
    const f32x16 change = f32x16::broadcast(beta) * (v - decay * known_of(tile, k));
    correct(tile, k, change, decay, [](int, int, f32x16) {});
  }

 private:
  const float* query(const float* x) const { return x + row(); }
  const float* key(const float* x) const { return x + all_rows_ + row(); }
  const float* values(const float* x) const { return x + 2 * all_rows_ + column(); }

  // k^T S
  PENSTOCK_INLINE f32x16 known_of(const float* tile, const float* k) const {
    Sums known;
    each_state_row(rows_, [&](int r, int part) {
      known.parts[part] =
          fma(f32x16::broadcast(k[r]), f32x16::load(tile + r * kLanes), known.parts[part]);
    });
    return known.total();
  }

  // f(row, part, state) with each row of the tile behind a token of this key.
  template <class F>
  PENSTOCK_INLINE void correct(float* tile, const float* k, f32x16 change, f32x16 decay,
                               F f) const {
    each_state_row(rows_, [&](int r, int part) {
      const f32x16 state =
          fma(f32x16::broadcast(k[r]), change, decay * f32x16::load(tile + r * kLanes));
      state.store(tile + r * kLanes);
      f(r, part, state);
    });
  }

  const Args& args_;
  float scale_;
  alignas(64) float decay_[kBlockTokens];
  alignas(64) float beta_[kBlockTokens];
};

// B writes and C reads; the columns that enter are x.
class Selective : public Head {
 public:
  using Args = SelectiveScanArgs;
  // Of 64 sequences, 80 heads of 64 columns each, one token takes 6.6 ms where tiles are tasks of their
  // own, and 7.5 ms where those of a head follow each other at once.
  static constexpr bool kStreams = true;

  Selective(const Args& args, int head, std::byte* scratch)
      : Head(args.state.at, args.groups, head, args.a_log, scratch), args_(args) {}

  void fetch(int64_t row, int first, int columns) const {
    const float* const x = args_.xbc.row<const float>(row);
    penstock::fetch(b(x), rows_);
    penstock::fetch(c(x), rows_);
    penstock::fetch(x + column() + first, columns);
    penstock::fetch(args_.out.row<float>(row) + column() + first, columns);
  }

  void ready(int64_t first, int n) {
    const f32x16 least = f32x16::broadcast(args_.least_step);
    const f32x16 most = f32x16::broadcast(args_.most_step);
    f32x16 step = softplus(gather(args_.dt, first, n, head_) +
                           f32x16::broadcast(args_.dt_bias[head_]));
    step = select_less(step, least, least, step);
    step = select_less(most, step, most, step);
    step.store(step_);
    exp(f32x16::zero() - rate_ * step).store(decay_);
    const float* const only = args_.xbc.row<const float>(first);
    in_ = n == 1 ? b(only) : in(0);
    out_ = n == 1 ? c(only) : out(0);
    for (int i = 0; i < n && n > 1; ++i) {
      const float* const x = args_.xbc.row<const float>(first + i);
      std::memcpy(in(i), b(x), size_t(rows_) * sizeof(float));
      std::memcpy(out(i), c(x), size_t(rows_) * sizeof(float));
    }
  }

  void walk(float* tile, const TileColumns& at, int64_t first, int n) {
    for (int i = 0; i < n; ++i) {
      const int64_t row = first + i;
      const float* const c = out_ + i * stride();
      const f32x16 x = load_up_to(args_.xbc.row<const float>(row) + column() + at.first, at.n);
      const f32x16 u = f32x16::broadcast(step_[i]) * x, decay = f32x16::broadcast(decay_[i]);
      Sums read;
      update(tile, in_ + i * stride(), u, decay, [&](int r, int part, f32x16 state) {
        read.parts[part] = fma(f32x16::broadcast(c[r]), state, read.parts[part]);
      });
      store_up_to(fma(f32x16::broadcast(args_.d[head_]), x, read.total()),
                  args_.out.row<float>(row) + column() + at.first, at.n);
    }
  }

  // B, u and decays.
  void write_log(float* log, int64_t row) {
    const float* const x = args_.xbc.row<const float>(row);
    if (leads_) std::memcpy(log + this->row(), in_, size_t(rows_) * sizeof(float));
    for (int j = 0; j < width_; ++j) log[all_rows_ + column() + j] = step_[0] * x[column() + j];
    log[all_rows_ + all_columns_ + head_] = decay_[0];
  }
  void replay(float* tile, const TileColumns& at, const float* log) {
    const f32x16 u = load_up_to(log + all_rows_ + column() + at.first, at.n);
    const f32x16 decay = f32x16::broadcast(log[all_rows_ + all_columns_ + head_]);
    update(tile, log + row(), u, decay, [](int, int, f32x16) {});
  }

 private:
  const float* b(const float* x) const { return x + all_columns_ + row(); }
  const float* c(const float* x) const { return x + all_columns_ + all_rows_ + row(); }

  // f(row, part, state) with each row of the tile behind a token.
  template <class F>
  PENSTOCK_INLINE void update(float* tile, const float* b, f32x16 u, f32x16 decay, F f) const {
    each_state_row(rows_, [&](int r, int part) {
      const f32x16 state = fma(u, f32x16::broadcast(b[r]), decay * f32x16::load(tile + r * kLanes));
      state.store(tile + r * kLanes);
      f(r, part, state);
    });
  }

  const Args& args_;
  const float *in_ = nullptr, *out_ = nullptr;  // a token alone is read where it lies
  alignas(64) float decay_[kBlockTokens];
  alignas(64) float step_[kBlockTokens];
};

}  // namespace

size_t scan_scratch_bytes(const StateLayer& state) {
  return Head::scratch_bytes(state.at.rows) + size_t(tiles_of(state.at.columns)) * state.tile_bytes();
}

void gated_delta(const GatedDeltaArgs& args, const StepView& step, const Worker& worker) {
  scan<Delta>(args, step, worker);
}

void selective_scan(const SelectiveScanArgs& args, const StepView& step, const Worker& worker) {
  scan<Selective>(args, step, worker);
}

}  // namespace penstock
