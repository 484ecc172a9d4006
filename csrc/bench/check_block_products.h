// Products of blocks of files against the text of gemm_block.h, by what read_block() sees.
#pragma once

#include "../kernels/gemm_block_read.h"
#include "check_int_products.h"

namespace penstock::check {

// A column's groups, by their definition.
template <class Format>
struct BlockColumn {
  std::vector<decltype(point_of<Format>(0))> points;
  std::vector<float> scales, leasts;
};

inline bool has_scale32(WeightFormat format) {
  return format >= WeightFormat::fp8_128 && format < WeightFormat::e8p &&
         format != WeightFormat::mxfp8;
}

// Column k of a block: of lattice points what their definition says, else what the code stands for that
// was read.
template <class Format>
auto point_in(WeightFormat format, const FileBlock& block, int64_t k) {
  const uint8_t* const codes = block.codes.data() + k / 8 * 8;
  const auto i = size_t(k % 8);
  using Point = decltype(point_of<Format>(0));
  if (format == WeightFormat::small_e8) return Point(kSmallE8Codes[codes[0]][i] - kSmallE8Offset);
  if (format != WeightFormat::e8p) return point_of<Format>(block.codes[size_t(k)]);
  unsigned signs = codes[1] & 127;
  signs |= unsigned(std::popcount(signs) % 2) << 7;
  const int size = int8_t(kE8pMagnitudes[codes[0]][i]);
  return Point((signs >> i & 1 ? -size : size) + (codes[1] & 128 ? -1 : 1));
}

template <class Format>
BlockColumn<Format> read_column(WeightFormat format, const std::byte* row, int64_t k) {
  const BlockSize size = block_size(format);
  const bool super = size.columns == 256;
  BlockColumn<Format> column;
  for (int64_t first = 0; first < k; first += size.columns, row += size.bytes) {
    const FileBlock block = read_block(format, row);
    for (int64_t i = 0; i < size.columns; ++i)
      column.points.push_back(point_in<Format>(format, block, i));
    for (int64_t g = 0; g < size.columns / Format::kGroup; ++g) {
      float scale = to_f32(block.scale[super ? 0 : g]), least = to_f32(block.least[super ? 0 : g]);
      if (format == WeightFormat::mxfp4) scale = std::ldexp(1.0f, int(block.exponent) - 128);
      if (format == WeightFormat::mxfp8) scale = std::ldexp(1.0f, int(block.exponent) - 127);
      if (has_scale32(format)) scale = block.scale32;
      if (format == WeightFormat::e8p) scale = 0.25f;
      if (format == WeightFormat::small_e8) scale = 0.5f;
      if (format == WeightFormat::nvfp4_scaled) scale *= E4m3Points::point(block.factors[g]);
      if (super) {
        const int offset = format == WeightFormat::q6_k                                     ? 128
                           : format == WeightFormat::q3_k || format == WeightFormat::iq4_xs ? 32
                                                                                            : 0;
        scale *= float(block.factors[g] - offset);
        least *= -float(block.leasts[g]);
      }
      column.scales.push_back(scale);
      column.leasts.push_back(least);
    }
  }
  return column;
}

// The sum of x in a group.
inline float sum_of(const float* x, int64_t group) {
  const f32x16 low = f32x16::load(x);
  return group == 16 ? hsum(low) : hsum(low + f32x16::load(x + 16));
}

template <class Format>
Sum block_sum([[maybe_unused]] WeightFormat format, const BlockColumn<Format>& w, const Quantized& q, const float* x, Elem elem, int64_t k,
              bool weight_only) {
  constexpr int64_t size = Format::kGroup;
  const int apart = elem == Elem::bf16 ? 2 : 0;
  Sum sum{0};
#if defined(__AMX_BF16__)
  if (of_lattice(format) && elem == Elem::bf16) {  // tiles take all k as one group
    sum = chain(x, [&](int64_t i) { return w.points[size_t(i)]; }, 0, k, apart);
    return {sum.value * w.scales[0], sum.error * w.scales[0]};
  }
#endif
  for (int64_t first = 0; first < k; first += size) {
    const auto g = size_t(first / size);
    if (weight_only) {
      const Sum part = chain(x, [&](int64_t i) { return w.points[size_t(i)]; }, first, first + size,
                             apart);
      sum.value = multiply_add(w.scales[g], part.value, sum.value);
      if (Format::kLeast) sum.value = multiply_add(w.leasts[g], sum_of(x + first, size), sum.value);
      continue;
    }
    int dot = 0, codes = 0;
    for (int64_t i = first; i < first + size; ++i) {
      dot += q.codes[size_t(i)] * int(w.points[size_t(i)]);
      codes += q.codes[size_t(i)];
    }
    const float scale = q.scales[size_t(first / 32)];
    sum.value = multiply_add(scale * w.scales[g], float(dot), sum.value);
    if (Format::kLeast) sum.value = multiply_add(w.leasts[g], scale * float(codes), sum.value);
  }
  return sum;
}

template <class Format>
void check_block_product(const std::string& name, BlockMatrix w, Elem elem, const RowCounts& counts,
                         Pool& pool, std::mt19937& rng) {
  const int64_t n = w.n, k = w.k, columns = w.gated ? 2 * n : n;
  const int64_t row_bytes = block_row_bytes(w.format, k), block = block_size(w.format).bytes;
  std::vector<std::byte> file(size_t(columns * row_bytes));
  for (std::byte& b : file) b = std::byte(rng());
  // Scales in float16: none that is infinite, and few that are extreme.
  std::vector<int64_t> halves;
  switch (w.format) {
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k: halves = {0, 2}; break;
    case WeightFormat::q2_k: halves = {80, 82}; break;
    case WeightFormat::q3_k: halves = {108}; break;
    case WeightFormat::q6_k: halves = {208}; break;
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4:
    case WeightFormat::fp8_128:
    case WeightFormat::fp8_32:
    case WeightFormat::mxfp8:
    case WeightFormat::nf4:
    case WeightFormat::fp4:
    case WeightFormat::nvfp4_scaled:
    case WeightFormat::e8p:
    case WeightFormat::small_e8: break;
    default: halves = {0};
  }
  for (size_t i = 0; i < file.size(); i += size_t(block)) {
    for (const int64_t at : halves)
      file[i + size_t(at) + 1] = std::byte(rng() % 8 ? 0x2c + rng() % 4 : rng() % 0x7c);
    if (w.format == WeightFormat::mxfp4 || w.format == WeightFormat::mxfp8)
      file[i] = std::byte(rng() % 8 ? 120 + rng() % 10 : rng() % 160);
    if (has_scale32(w.format)) {
      // One for all of a row where a format has it so.
      const bool whole = w.format == WeightFormat::nvfp4_scaled && int64_t(i) % row_bytes;
      const float scale = float(1 + rng() % 1000) * (rng() % 8 ? 1e-4f : 1e-9f);
      if (whole) std::memcpy(file.data() + i, file.data() + i - size_t(block), 4);
      else std::memcpy(file.data() + i, &scale, 4);
    }
    if (w.format == WeightFormat::nvfp4_scaled)
      for (size_t g = 4; g < 6; ++g)  // scales have no sign
        file[i + g] = std::byte(rng() % 8 ? 20 + rng() % 60 : rng() % 127);
  }
  const int64_t rows = std::ranges::max(counts);
  Inputs x(rows, k, elem, rng);
  std::vector<Quantized> quantized;
  for (int64_t r = 0; r < rows; ++r) quantized.emplace_back(x.row(r), k, 32);
  std::vector<BlockColumn<Format>> read;
  for (int64_t i = 0; i < columns; ++i)
    read.push_back(read_column<Format>(w.format, file.data() + i * row_bytes, k));

  const auto pack = [&](std::byte* panels, int part, PartPlace place, Worker& worker) {
    pack_block_part(w, file.data() + part * n * row_bytes, n, place, panels, worker);
  };
  const auto sum = [&](int64_t r, int part, int64_t c) {
    return block_sum<Format>(w.format, read[size_t(part * n + c)], quantized[size_t(r)], x.row(r), elem, k,
                             w.weight_only);
  };
  check_product(name + (w.weight_only ? " w" : ""), w, x, counts, pool, pack, sum);

  // And as a table.
  if (w.gated) return;
  Memory panels(packed_bytes(w));
  pool.run([&](Worker& worker) { pack(panels.data(), 0, joined_part(0, n, n), worker); });
  w.panels = panels.data();
  std::vector<float> values(static_cast<size_t>(k));
  for (const int64_t row : {int64_t(0), n - 1}) {
    block_row(w, row, values.data());
    const BlockColumn<Format>& column = read[size_t(row)];
    for (int64_t i = 0; i < k; ++i) {
      const auto at = size_t(i), g = size_t(i / Format::kGroup);
      float value = column.scales[g] * float(column.points[at]);
      if (Format::kLeast) value += column.leasts[g];
      expect(values[at] == value || (values[at] != values[at] && value != value),
             name + ", row " + std::to_string(row) + " of the table");
    }
  }
}

inline void check_block_products(Pool& pool, std::mt19937& rng) {
  for (int id = int(WeightFormat::q4_0); id <= int(WeightFormat::small_e8); ++id) {
    const auto format = WeightFormat(id);
    with_block_format(format, [&]<class Format>(Format) {
      const std::string name = "blocks of format " + std::to_string(id);
      const int64_t least = block_size(format).columns;
      for (const bool weight_only : {false, true}) {
        if (!weight_only && !Format::kWhole) continue;
        const auto check = [&](int64_t n, int64_t k, Elem elem, const RowCounts& counts, bool gated) {
          check_block_product<Format>(name, {format, n, round_up(k, least), gated, {}, {}, weight_only},
                                      elem, counts, pool, rng);
        };
        for (const bool odd : {true, false}) {
          const RowCounts counts = row_counts(pool, odd, {35});
          check(35, 224, Elem::f32, counts, !odd);
          check(64, 96, Elem::bf16, counts, odd);
        }
        check(20, 1312, Elem::bf16, {7}, false);  // several slices
        check(18, 544, Elem::f32, {5}, true);
      }
      // Several row blocks.
      check_block_product<Format>(name, {format, 16, 256, false, {}, {}, !Format::kWhole},
                                  Elem::f32, {530}, pool, rng);
    });
  }
}

#if defined(__AVX512VNNI__)

// Codes that are looked up in registers stand for the points of those that are gathered.
template <class Shuffled, class Gathered>
void check_shuffled(const char* name, std::mt19937& rng) {
  alignas(64) std::byte segment[Gathered::kSegmentBytes];
  for (int round = 0; round < 500; ++round) {
    for (std::byte& each : segment) each = std::byte(rng());
    for (int q = 0; q < kRunQuads; ++q) {
      alignas(64) std::byte got[kLineBytes], expected[kLineBytes];
      Shuffled::quad(segment, 0, q).store(got);
      Gathered::quad(segment, 0, q).store(expected);
      for (int i = 0; i < kLineBytes; ++i)
        expect(point_of<Shuffled>(int(got[i])) == point_of<Gathered>(int(expected[i])),
               std::string(name) + ": quad " + std::to_string(q) + ", byte " + std::to_string(i));
    }
  }
}

inline void check_shuffled(std::mt19937& rng) {
  if (!shuffles_bytes()) return;
  check_shuffled<ShuffledE8p, E8p>("E8P", rng);
  check_shuffled<ShuffledSmallE8, SmallE8>("the smaller codebook", rng);
}

#else

inline void check_shuffled(std::mt19937&) {}

#endif

}  // namespace penstock::check
