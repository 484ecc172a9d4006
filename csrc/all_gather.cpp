#include "all_gather.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace penstock {
namespace {

// Some columns of a row.
struct Piece {
  int64_t row;
  ColumnRange columns;
};

// Calls f with the worker's pieces of rows of so many columns: whole rows, unless there are fewer of
// them than workers.
template <class F>
void share_pieces(int64_t rows, int64_t cols, const Worker& worker, F f) {
  const int64_t parts = rows < worker.count ? worker.count : 1;
  const Share mine = share(rows * parts, worker);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const int64_t part = i % parts;
    f(Piece{i / parts, {cols * part / parts, cols * (part + 1) / parts}});
  }
}

std::byte* at(const Array& array, int64_t row, int64_t column) {
  return array.data + size_t(row * array.stride + column) * elem_bytes(array.elem);
}

}  // namespace

void all_gather(const AllGatherArgs& args, int64_t rows, RankGroup& ranks, const Worker& worker) {
  if (rows == 0) return;  // of all ranks
  const size_t element = elem_bytes(args.x.elem);
  const uint32_t gather = ranks.next();
  std::byte* const own = ranks.slot(ranks.rank(), gather);
  share_pieces(rows, args.x.cols, worker, [&](const Piece& piece) {
    const auto [first, end] = piece.columns;
    std::memcpy(own + size_t(piece.row * args.x.cols + first) * element,
                at(args.x, piece.row, first), size_t(end - first) * element);
  });
  worker.barrier->wait(worker);
  if (worker.id == 0) ranks.publish();
  for (int r = 0; r < ranks.world(); ++r)
    if (r != ranks.rank() && !ranks.wait(r, gather)) return;
  share_pieces(rows, args.out.cols, worker, [&](const Piece& piece) {
    for (int r = 0; r < ranks.world(); ++r) {
      const auto [theirs, their_end] = args.ranks[size_t(r)];
      const int64_t first = std::max(piece.columns.first, theirs);
      const int64_t end = std::min(piece.columns.end, their_end);
      if (first >= end) continue;
      const int64_t place = piece.row * (their_end - theirs) + first - theirs;
      std::memcpy(at(args.out, piece.row, first), ranks.slot(r, gather) + size_t(place) * element,
                  size_t(end - first) * element);
    }
  });
}

}  // namespace penstock
