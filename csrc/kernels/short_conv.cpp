#include "short_conv.h"

#include <algorithm>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int64_t kLeastTasks = 4;  // to take at a time

// As it is kept.
template <class T>
PENSTOCK_INLINE f32x16 rounded(f32x16 x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    alignas(64) T kept[f32x16::lanes];
    x.store(kept);
    return f32x16::load(kept);
  }
}

// The rows of one sequence.
template <class T>
class Line {
 public:
  Line(const ShortConvArgs& args, const StepView& step, int sequence)
      : args_(args),
        first_(step.query_starts[sequence]),
        end_(step.query_starts[sequence + 1]),
        context_(step.context_lens[sequence]),
        blocks_(step.groups[size_t(args.kv.group)].block_ids +
                step.groups[size_t(args.kv.group)].block_starts[sequence]) {}

  // Columns [column, column + n), at most a register of them.
  void convolve(int64_t column, int n) const {
    const int before = args_.kernel - 1, start = context_ - (end_ - first_);
    f32x16 taps[kMostTaps], seen[kMostTaps];  // seen: of the tokens that the taps are for
    for (int j = 0; j <= before; ++j) {
      taps[j] = f32x16::load_n(args_.taps + j * args_.x.cols + column, n);
      const int place = start - before + j;
      seen[j] = j < before && place >= 0 ? f32x16::load_n(kept(place) + column, n) : f32x16::zero();
    }
    const f32x16 bias = args_.bias ? f32x16::load_n(args_.bias + column, n) : f32x16::zero();
    for (int row = first_, place = start; row < end_; ++row, ++place) {
      seen[before] = rounded<T>(f32x16::load_n(args_.x.row<const float>(row) + column, n));
      f32x16 sum = bias;
      for (int j = 0; j <= before; ++j) sum = fma(taps[j], seen[j], sum);
      sum.store_n(args_.out.row<float>(row) + column, n);
      if (stays(place)) seen[before].store_n(kept(place) + column, n);
      for (int j = 0; j < before; ++j) seen[j] = seen[j + 1];
    }
  }

 private:
  // Whether no later row of the step takes the place of this one.
  bool stays(int place) const {
    const int last = std::min((place / kBlockSize + 1) * kBlockSize, context_) - 1;
    return place + args_.kv.rows > last;
  }
  T* kept(int place) const {
    const KvLayer& kv = args_.kv;
    std::byte* const block = kv.base + size_t(blocks_[place / kBlockSize]) * kv.stride;
    return reinterpret_cast<T*>(block) + int64_t(place % kBlockSize % kv.rows) * kv.row_columns();
  }

  const ShortConvArgs& args_;
  const int first_, end_, context_;
  const int32_t* const blocks_;
};

template <class T>
void convolve(const ShortConvArgs& args, const StepView& step, const Worker& worker) {
  const int64_t cols = args.x.cols, pieces = convolved_pieces(cols);
  Tickets::Phase phase = worker.tickets->open(worker, step.sequences * pieces, kLeastTasks);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task) {
      const Line<T> line(args, step, int(task / pieces));
      const int64_t first = task % pieces * kConvolvedColumns;
      const int64_t end = std::min(first + kConvolvedColumns, cols);
      for (int64_t column = first; column < end; column += f32x16::lanes)
        line.convolve(column, int(std::min<int64_t>(f32x16::lanes, end - column)));
    }
}

}  // namespace

void short_conv(const ShortConvArgs& args, const StepView& step, const Worker& worker) {
  switch (args.kv.elem) {
    case Elem::bf16: return convolve<bf16>(args, step, worker);
    case Elem::f16: return convolve<f16>(args, step, worker);
    default: return convolve<float>(args, step, worker);
  }
}

}  // namespace penstock
