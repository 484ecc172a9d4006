#include "columns.h"

#include <algorithm>
#include <cstring>

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

constexpr int64_t kReadRows = 4;  // to take at a time

template <class In, class Out>
void convert(const In* x, Out* out, int64_t cols) {
  if constexpr (std::is_same_v<In, Out>) {
    std::memcpy(out, x, size_t(cols) * sizeof(In));
  } else {
    constexpr int lanes = f32x16::lanes;
    int64_t i = 0;
    for (; i + lanes <= cols; i += lanes) f32x16::load(x + i).store(out + i);
    if (i < cols) f32x16::load_n(x + i, int(cols - i)).store_n(out + i, int(cols - i));
  }
}

template <class Out>
void join_row(const JoinArgs& args, int64_t r) {
  Out* out = args.out.row<Out>(r);
  for (int head = 0; head < args.heads; ++head)
    for (const Array& x : args.xs) {
      const int64_t cols = x.cols / args.heads, first = head * cols;
      if (x.elem == Elem::bf16)
        convert(x.row<const bf16>(r) + first, out, cols);
      else
        convert(x.row<const float>(r) + first, out, cols);
      out += cols;
    }
}

// Piece `piece` of row r of one output. Indices come from a file and are clamped so that no read leaves the row.
template <class T>
void gather_piece(const GatherArgs& args, const Gathered& to, int64_t r, int64_t piece) {
  const int64_t cols = args.x.cols, k = args.ids.cols;
  const T* x = args.x.row<const T>(args.shared ? r / k : r);
  T* out = to.out.row<T>(r);
  const int32_t* order = to.order;
  if (k > 0) order += int64_t(args.ids.row<const int32_t>(r / k)[r % k]) * cols;
  const uint32_t last = uint32_t(cols - 1);
  const int64_t end = std::min(cols, (piece + 1) * kGathered);
  for (int64_t j = piece * kGathered; j < end; ++j) out[j] = x[std::min(uint32_t(order[j]), last)];
}

}  // namespace

void copy_features(const FeaturesArgs& args, const StepView& step, const Worker& worker) {
  const Share mine = share(step.tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    std::memcpy(args.out.row<float>(t), step.features + t * step.feature_cols + args.first,
                size_t(args.out.cols) * sizeof(float));
}

void join(const JoinArgs& args, int64_t rows, const Worker& worker) {
  const auto row = args.out.elem == Elem::bf16 ? join_row<bf16> : join_row<float>;
  Tickets::Phase phase = worker.tickets->open(worker, rows, kReadRows);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t r = some.begin; r < some.end; ++r) row(args, r);
}

void gather_columns(const GatherArgs& args, int64_t rows, const Worker& worker) {
  const int64_t pieces = (args.x.cols + kGathered - 1) / kGathered;
  const auto piece = args.x.elem == Elem::bf16 ? gather_piece<bf16> : gather_piece<float>;
  const int64_t each = rows * pieces;
  Tickets::Phase phase = worker.tickets->open(worker, each * int64_t(args.into.size()), 1);
  for (Share some = phase.next(); !some.empty(); some = phase.next())
    for (int64_t i = some.begin; i < some.end; ++i)
      piece(args, args.into[size_t(i / each)], i % each / pieces, i % pieces);
}

}  // namespace penstock
