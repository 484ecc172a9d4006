#include "all_gather.h"

#include <algorithm>
#include <chrono>
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

// Copies what a piece of out has of the columns `theirs`, whose rows lie from `from` on.
void copy_piece(const Piece& piece, const AllGatherArgs& args, const ColumnRange& theirs,
                const std::byte* from, int64_t stride) {
  const int64_t first = std::max(piece.columns.first, theirs.first);
  const int64_t end = std::min(piece.columns.end, theirs.end);
  if (first >= end) return;
  const size_t element = elem_bytes(args.x.elem);
  std::memcpy(at(args.out, piece.row, first),
              from + size_t(piece.row * stride + first - theirs.first) * element,
              size_t(end - first) * element);
}

// Waits for all other ranks; worker 0 keeps account of the time. False if the group was given up.
bool wait_for_all(RankGroup& ranks, uint32_t gather, const Worker& worker) {
  const auto start = std::chrono::steady_clock::now();
  bool came = true;
  for (int r = 0; r < ranks.world() && came; ++r)
    came = r == ranks.rank() || ranks.wait(r, gather);
  if (worker.id == 0) ranks.add_waited(std::chrono::steady_clock::now() - start);
  return came;
}

}  // namespace

void all_gather(const AllGatherArgs& args, int64_t rows, RankGroup& ranks, const Worker& worker) {
  if (rows == 0) return;  // of all ranks
  const size_t element = elem_bytes(args.x.elem);
  const uint32_t gather = ranks.next();
  const bool reads = !args.to_first || ranks.rank() == 0;
  if (!args.to_first || ranks.rank() != 0) {  // else nobody reads what rank 0 has
    ranks.may_write(gather);
    std::byte* const own = ranks.slot(ranks.rank(), gather);
    share_pieces(rows, args.x.cols, worker, [&](const Piece& piece) {
      const auto [first, end] = piece.columns;
      std::memcpy(own + size_t(piece.row * args.x.cols + first) * element,
                  at(args.x, piece.row, first), size_t(end - first) * element);
    });
  }
  worker.barrier->wait(worker);
  if (worker.id == 0) ranks.publish();
  if (!reads || !wait_for_all(ranks, gather, worker)) return;
  share_pieces(rows, args.out.cols, worker, [&](const Piece& piece) {
    for (int r = 0; r < ranks.world(); ++r) {
      const ColumnRange& theirs = args.ranks[size_t(r)];
      if (r == ranks.rank())
        copy_piece(piece, args, theirs, args.x.data, args.x.stride);
      else
        copy_piece(piece, args, theirs, ranks.slot(r, gather), theirs.end - theirs.first);
    }
  });
}

}  // namespace penstock
