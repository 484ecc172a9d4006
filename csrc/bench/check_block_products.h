// Products of blocks of files against the text of gemm_block.h, by what a Format reads.
#pragma once

#include "../kernels/gemm_formats.h"
#include "check_int_products.h"

namespace penstock::check {

template <class Format>
void check_block_product(const std::string& name, BlockMatrix w, Elem elem, int64_t rows, Pool& pool,
                         std::mt19937& rng) {
  const int64_t n = w.n, k = w.k, columns = w.gated ? 2 * n : n, blocks = k / kBlockK;
  const int64_t block = block_bytes(w.format);
  std::vector<std::byte> file(size_t(columns * blocks * block));
  for (std::byte& b : file) b = std::byte(rng());
  // Scales come first: none that is infinite, and few that are extreme.
  for (int64_t i = 0; i < columns * blocks; ++i) {
    std::byte* const scale = file.data() + i * block;
    if (Format::kScaleBytes == 2) scale[1] = std::byte(rng() % 8 ? 0x2c + rng() % 4 : rng() % 0x7c);
    else if (rng() % 8) scale[0] = std::byte(120 + rng() % 10);
    else scale[0] = std::byte(rng() % 160);
  }
  Inputs x(rows, k, elem, rng);
  std::vector<Quantized> quantized;
  for (int64_t r = 0; r < rows; ++r) quantized.emplace_back(x.row(r), k, kBlockK);

  std::vector<BlockCodes> read;
  for (int64_t i = 0; i < columns * blocks; ++i) read.push_back(Format::read(file.data() + i * block));
  const auto pack = [&](std::byte* panels, int part, PartPlace place, Worker& worker) {
    pack_block_part(w, file.data() + part * n * blocks * block, n, place, panels, worker);
  };
  const auto sum = [&](int64_t r, int part, int64_t c) {
    const BlockCodes* const column = read.data() + (part * n + c) * blocks;
    return sum_of_groups(
        quantized[size_t(r)], k, kBlockK,
        [&](int64_t i) { return Format::point(column[i / kBlockK].codes[size_t(i % kBlockK)]); },
        [&](int64_t g) { return Format::scale(column[g]); });
  };
  check_product(name, w, x, rows, pool, pack, sum);
}

inline void check_block_products(Pool& pool, std::mt19937& rng) {
  for (const WeightFormat format : {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::mxfp4})
    with_block_format(format, [&]<class Format>(Format) {
      const std::string name = "blocks of format " + std::to_string(int(format));
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 18, 35}) {
        check_block_product<Format>(name, {format, 35, 224, rows % 2 == 0, {}, {}}, Elem::f32, rows,
                                    pool, rng);
        check_block_product<Format>(name, {format, 64, 96, rows % 2 == 1, {}, {}}, Elem::bf16, rows,
                                    pool, rng);
      }
    });
}

}  // namespace penstock::check
