#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "measure.h"
#include "measure_settle.h"
#include "memory.h"
#include "pool.h"

namespace penstock {
namespace {

#if defined(__AVX512F__)
typedef uint64_t Words __attribute__((vector_size(64)));
#elif defined(__AVX2__)
typedef uint64_t Words __attribute__((vector_size(32)));
#else
typedef uint64_t Words __attribute__((vector_size(16)));
#endif

constexpr size_t kLine = 64;
constexpr size_t kBurst = 4;                 // lines of a stream, before the next stream's
constexpr size_t kPiece = size_t(16) << 20;  // bytes of each thread's share, read in one sample
constexpr size_t kPieceLines = kPiece / kLine;

// Reads `lines` from each of `Streams` places, `apart` bytes apart.
template <int Streams>
void read(const std::byte* from, size_t lines, size_t apart, size_t ahead) {
  Words sums[kBurst] = {};
  for (size_t i = 0; i < lines; i += kBurst)
#pragma GCC unroll 4
    for (int s = 0; s < Streams; ++s)
#pragma GCC unroll 4
      for (size_t j = 0; j < kBurst; ++j) {
        const std::byte* line = from + size_t(s) * apart + (i + j) * kLine;
        if (ahead != 0) __builtin_prefetch(line + ahead);
#pragma GCC unroll 4
        for (size_t at = 0; at < kLine; at += sizeof(Words))
          sums[j] ^= *reinterpret_cast<const Words*>(line + at);
      }
  asm volatile("" : : "m"(sums) : "memory");
}

// How a share is read. Which is fastest differs between machines, and with the number of threads:
// where memory is far away the hardware alone asks for too few lines at a time, and how far ahead
// programs ask decides how many are under way.
struct Way {
  int streams;
  size_t ahead;  // bytes
  double best = 0;

  void read_piece(const std::byte* from) const {
    const size_t lines = kPieceLines / size_t(streams);
    const size_t apart = lines * kLine;
    if (streams == 1) read<1>(from, lines, apart, ahead);
    else if (streams == 2) read<2>(from, lines, apart, ahead);
    else read<4>(from, lines, apart, ahead);
  }
};

}  // namespace

Measured measure_reading(size_t bytes, int threads, double seconds) {
  Pool pool(threads, true);
  const size_t pieces = std::max<size_t>(1, bytes / kPiece / size_t(threads));  // of a share
  const Memory memory(pieces * kPiece * size_t(threads));
  const auto share_of = [&](const Worker& worker) {
    return memory.data() + size_t(worker.id) * pieces * kPiece;
  };
  pool.run([&](Worker& worker) {  // written, or every page would be the one zero page
    std::memset(share_of(worker), 1, pieces * kPiece);
  });

  std::vector<Way> ways;
  for (const int streams : {1, 2, 4})
    for (const size_t ahead : {0, 512, 2048, 4096, 8192, 16384}) ways.push_back({streams, ahead});
  size_t piece = 0, way = 0;
  int rounds = 0;
  return settle(seconds, [&] {
    Way& tried = ways[way];
    const size_t at = piece * kPiece;
    const double start = seconds_now();
    pool.run([&](Worker& worker) { tried.read_piece(share_of(worker) + at); });
    const double rate = double(kPiece) * threads / (seconds_now() - start);
    tried.best = std::max(tried.best, rate);
    piece = (piece + 1) % pieces;
    if (++way == ways.size()) {
      way = 0;
      // Twice beaten by a tenth is no neighbour's work: time is for those that may be the best.
      if (++rounds >= 2) {
        double best = 0;
        for (const Way& each : ways) best = std::max(best, each.best);
        std::erase_if(ways, [&](const Way& each) { return each.best < 0.9 * best; });
      }
    }
    return rate;
  });
}

}  // namespace penstock
