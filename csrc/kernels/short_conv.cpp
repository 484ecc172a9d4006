#include "short_conv.h"

#include <algorithm>

#include "../pool.h"
#include "../simd.h"
#include "taps.h"

namespace penstock {
namespace {

constexpr int64_t kLeastTasks = 4;  // to take at a time

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

  template <int K>
  void convolve(const TapColumns& at) const {
    const int start = context_ - (end_ - first_);
    Taps<K> taps(args_.taps, args_.bias, args_.kernel, args_.x.cols, at);
    for (int back = 1; back < taps.count() && back <= start; ++back)
      taps.precede(back, f32x16::load_n(kept(start - back) + at.first, at.n));
    for (int row = first_, place = start; row < end_; ++row, ++place) {
      const f32x16 u =
          as_kept<T>(f32x16::load_n(args_.x.row<const float>(row) + at.first, at.n));
      taps.next(u).store_n(args_.out.row<float>(row) + at.first, at.n);
      if (stays(place)) u.store_n(kept(place) + at.first, at.n);
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

template <class T, int K>
void convolve(const ShortConvArgs& args, const StepView& step, const Worker& worker) {
  const int64_t cols = args.x.cols, pieces = convolved_pieces(cols);
  Tickets::Phase phase = worker.tickets->open(worker, step.sequences * pieces, kLeastTasks);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t task = some.begin; task < some.end; ++task) {
      const Line<T> line(args, step, int(task / pieces));
      const int64_t first = task % pieces * kConvolvedColumns;
      const int64_t end = std::min(first + kConvolvedColumns, cols);
      for (int64_t column = first; column < end; column += f32x16::lanes)
        line.template convolve<K>({column, int(std::min<int64_t>(f32x16::lanes, end - column))});
    }
}

template <class T>
void convolve(const ShortConvArgs& args, const StepView& step, const Worker& worker) {
  with_taps(args.kernel, [&](auto k) { convolve<T, k()>(args, step, worker); });
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
