// Ranks that gather columns in one memory, each with a pool of its own. They are threads of this
// process and share one mapping, so that builds which look for data races see what they exchange.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "../all_gather.h"
#include "../pool.h"

namespace penstock {

// How many numbers came out wrong of `rounds` gathers by so many ranks of so many threads each, of
// which two in three are for rank 0 alone: others run ahead of it then, as far as they may.
inline int wrong_numbers(int world, int threads, int rounds, bool crowded) {
  constexpr int64_t kRows = 7;
  std::vector<ColumnRange> ranges;  // uneven; the last rank has the same as the one before
  for (int r = 0; r + 1 < world || r == 0; ++r) {
    const int64_t first = ranges.empty() ? 0 : ranges.back().end;
    ranges.push_back({first, first + 3 + 5 * r});
  }
  while (int(ranges.size()) < world) ranges.push_back(ranges.back());
  const int64_t cols = ranges.back().end;
  const size_t slot = size_t(kRows * cols) * sizeof(float);
  const size_t bytes = RankGroup::bytes(world, slot);
  const int fd = memfd_create("ranks", 0);
  if (fd < 0 || ftruncate(fd, off_t(bytes)) != 0) std::abort();
  const auto memory = std::make_shared<SharedMapping>(fd, bytes);
  close(fd);
  std::vector<int> wrong(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      RankGroup group(memory, {rank, world, slot, crowded});
      Pool pool(threads, {}, crowded);
      const auto [first, end] = ranges[size_t(rank)];
      std::vector<float> own(size_t(kRows * (end - first))), all(size_t(kRows * cols));
      AllGatherArgs args{{reinterpret_cast<std::byte*>(own.data()), Elem::f32, end - first},
                         {reinterpret_cast<std::byte*>(all.data()), Elem::f32, cols},
                         ranges};
      for (int round = 0; round < rounds; ++round) {
        const int64_t rows = round % (kRows + 1);
        const auto number = [&](int64_t row, int64_t column) {
          return float((round * 31 + row) * 64 + column);
        };
        for (int64_t i = 0; i < rows * (end - first); ++i)
          own[size_t(i)] = number(i / (end - first), first + i % (end - first));
        args.to_first = round % 3 != 0;
        pool.run([&](Worker& worker) { all_gather(args, rows, group, worker); });
        if (args.to_first && rank != 0) continue;
        for (int64_t i = 0; i < rows * cols; ++i)
          wrong[size_t(rank)] += all[size_t(i)] != number(i / cols, i % cols);
      }
    });
  for (std::thread& rank : ranks) rank.join();
  int sum = 0;
  for (const int count : wrong) sum += count;
  return sum;
}

}  // namespace penstock
