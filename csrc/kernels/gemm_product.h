// A product from its rows to its output, the same for all weights and kernels: few rows of x are made
// ready (packed or quantized) by every thread for itself, more of them by all threads together; then
// each multiplies them by its share of the units, and by what others have left of theirs.
//
// A Path is a kernel with its kind of weights and activations. For a row block it is an object, and
// provides
//   kOwnRows                    up to so many rows are made ready by every thread for itself
//   row_block(p)                rows that are made ready at once, at most
//   ready_bytes(p, rows, shared)  of them, for any number up to `rows`; a thread's own, or shared
//   work_bytes(p, rows)         scratch of make() and of multiply(), each thread's own
//   Path(p, x, e, rows, shared, ready)
//   make(id, count, work)       a thread's part of making the rows ready, in `ready`
//   multiply(units, work)       through the epilogue; with tile registers as the constructor set them
#pragma once

#include "../pool.h"
#include "gemm_kernels.h"

namespace penstock {

constexpr int64_t kAllRows = int64_t(1) << 40;

// Units that a thread takes at a time, at least. Of few rows memory is what counts, and it is not the same
// for all threads: one that reads slower, or whose core does something else, must not hold up the others.
// (Zen 5, three threads, Qwen3 0.6B, while memory read 80 GB/s: with even shares threads waited 12 to 20 %
// of a product of one row, and wait 0 to 1; eight streams in bfloat16 322 and 328 tokens/s, now 360 and
// 368.) Pieces of many rows are so large that they cost nothing; but rows that every thread packs for
// itself, for each piece anew, cost 13 % more with eight pieces a share, so those shares stay whole.
constexpr int64_t kRowsOfSmallPieces = 32;
constexpr int64_t kUnitsOfLargePieces = 32;

constexpr int64_t least_units(int64_t unit_bytes, int64_t units, int64_t rows, bool own) {
  if (rows <= kRowsOfSmallPieces) return std::max<int64_t>(1, kPieceBytes / unit_bytes);
  return own ? units : kUnitsOfLargePieces;
}

template <class Path, class View>
void Product<Path, View>::run(const View& p, const InputRows& x, const Epilogue& e, int64_t rows,
                              std::byte* shared, const Worker& worker) {
  const bool own = rows <= Path::kOwnRows;
  std::byte* const work =
      worker.scratch + Path::ready_bytes(p, std::min(rows, Path::kOwnRows), false);
  const int64_t blocks = ceil_div(rows, Path::row_block(p));
  const int64_t least = least_units(p.per_unit * p.panel_bytes, p.units, rows, own);
  for (int64_t i = 0; i < blocks; ++i) {
    Path path(p, x, e, even_share(rows, i, blocks), !own, own ? worker.scratch : shared);
    if (own) {
      path.make(0, 1, work);
    } else {
      if (i) worker.barrier->wait(worker);  // before what others may still read is written over
      path.make(worker.id, worker.count, work);
      worker.barrier->wait(worker);
    }
    Tickets::Phase phase = worker.tickets->open(worker, p.units, least);
    for (Share some = phase.next(); !some.empty(); some = phase.next())
      path.multiply({some.begin, some.end}, work);
  }
}

template <class Path, class View>
void Product<Path, View>::run_units(const View& p, const InputRows& x, const Epilogue& e,
                                    int64_t rows, Range units, bool ready, std::byte* scratch) {
  std::byte* const work = scratch + Path::ready_bytes(p, rows, false);
  const int64_t blocks = ceil_div(rows, Path::row_block(p));
  for (int64_t i = 0; i < blocks; ++i) {
    Path path(p, x, e, even_share(rows, i, blocks), false, scratch);
    if (!ready || blocks > 1) path.make(0, 1, work);
    path.multiply(units, work);
  }
}

template <class Path, class View>
int64_t Product<Path, View>::scratch_bytes(const View& p, int64_t rows) {
  return Path::ready_bytes(p, std::min(rows, Path::kOwnRows), false) + Path::work_bytes(p, rows);
}
template <class Path, class View>
int64_t Product<Path, View>::shared_bytes(const View& p, int64_t rows) {
  return rows > Path::kOwnRows ? Path::ready_bytes(p, rows, true) : 0;
}
template <class Path, class View>
int64_t Product<Path, View>::units_scratch_bytes(const View& p, int64_t rows) {
  return Path::ready_bytes(p, rows, false) + Path::work_bytes(p, rows);
}

}  // namespace penstock
