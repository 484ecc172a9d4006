#include "gemm_codebook_panels.h"

#include <cstring>

#include "../small_floats.h"
#include "gemm_panels.h"

namespace penstock {
namespace {

float as_stored(Elem elem, float value) {
  return elem == Elem::bf16 ? to_f32(to_bf16(value)) : value;
}

// Code i of a row of a file.
unsigned code_at(const std::byte* row, int bits, int64_t i) {
  const int64_t bit = i * bits;
  unsigned code = unsigned(row[bit / 8]) >> bit % 8;
  if (bit % 8 + bits > 8) code |= unsigned(row[bit / 8 + 1]) << (8 - bit % 8);
  return code & ((1u << bits) - 1);
}

// The lines of one column: k after k, as they are stored.
class ColumnLines {
 public:
  ColumnLines(const CodebookPanels& p, std::byte* panel, int lane)
      : bits_(p.bits),
        triples_(p.triples),
        lines_(panel + p.codes_at + lane / kCodebookColumns * p.half_bytes +
               lane % kCodebookColumns * kLineBytes) {
    for (int64_t line = 0; line < 3 * p.triples + p.singles; ++line)
      std::memset(lines_ + line * kCodebookLine, 0, kLineBytes);
  }

  void put(int64_t k, unsigned code) const {
    const int64_t step = k / kCodebookStep, word = k % kCodebookStep;
    if (bits_ == 4) return put_bits(step / 4, word, code << step % 4 * 4);
    const bool triple = step < 16 * triples_;
    const int64_t own = triple ? step % 16 : step - 16 * triples_;
    const int64_t first = triple ? step / 16 * 3 : 3 * triples_;
    if (!triple || own < 15) return put_bits(first + own / 5, word, code << own % 5 * 3);
    for (int64_t i = 0; i < 3; ++i) put_bits(first + i, word, (code >> i & 1) << 15);
  }

 private:
  void put_bits(int64_t line, int64_t word, unsigned bits) const {
    std::byte* const at = lines_ + line * kCodebookLine + word * 2;
    uint16_t there;
    std::memcpy(&there, at, sizeof(there));
    there = uint16_t(there | bits);
    std::memcpy(at, &there, sizeof(there));
  }

  int bits_;
  int64_t triples_;
  std::byte* lines_;
};

void put_values(const CodebookPanels& p, const float* values, int lane, std::byte* panel) {
  const int64_t count = int64_t(1) << p.bits;
  for (int64_t i = 0; i < count; ++i) {
    const float value = values ? values[i] : 0.0f;
    const bf16 narrow = to_bf16(value);
    std::byte* const at = panel + (lane * count + i) * int64_t(elem_bytes(p.values));
    if (p.values == Elem::bf16) std::memcpy(at, &narrow, sizeof(narrow));
    else std::memcpy(at, &value, sizeof(value));
  }
}

}  // namespace

size_t packed_bytes(const CodebookMatrix& w) {
  const int64_t padded = round_up(w.outliers, kLineBytes / 4);
  return size_t(CodebookPanels(w).all_panels() + padded * 4 + round_up(w.outliers * 2, kLineBytes));
}

bool outliers_in_order(const CodebookMatrix& w, std::span<const int32_t> ends,
                       std::span<const int32_t> columns) {
  if (ends.empty() || ends.front() != 0 || ends.back() != int64_t(columns.size())) return false;
  for (size_t r = 1; r < ends.size(); ++r)
    if (ends[r] < ends[r - 1]) return false;
  for (size_t r = 1; r < ends.size(); ++r)
    for (int64_t i = ends[r - 1], last = -1; i < ends[r]; last = columns[size_t(i)], ++i)
      if (columns[size_t(i)] <= last || columns[size_t(i)] >= w.k) return false;
  return true;
}

void pack_codebook_part(const CodebookMatrix& w, const CodebookRows& rows, int64_t n, int64_t first,
                        PartPlace place, std::byte* panels, const Worker& worker) {
  CodebookPanels p(w);
  p.data = panels;
  const int64_t row_bytes = codebook_row_bytes(w.bits, w.k), count = int64_t(1) << w.bits;
  float* const excess = const_cast<float*>(p.excess());
  uint16_t* const places = const_cast<uint16_t*>(p.places());
  for_each_column(p, n, place, panels, worker, [&](int64_t row, int lane, std::byte* panel) {
    const ColumnLines lines(p, panel, lane);
    OutlierRun run{0, 0};
    if (row < 0) {
      put_values(p, nullptr, lane, panel);
    } else {
      const std::byte* const codes = rows.codes + row * row_bytes;
      const float* const values = rows.values + row * count;
      put_values(p, values, lane, panel);
      for (int64_t k = 0; k < w.k; ++k) lines.put(k, code_at(codes, w.bits, k));
      const int64_t begin = rows.ends[row], end = rows.ends[row + 1];
      run = {uint32_t(first + begin), uint32_t(end - begin)};
      for (int64_t i = begin; i < end; ++i) {
        const float named = as_stored(w.values, values[code_at(codes, w.bits, rows.columns[i])]);
        excess[first + i] = as_stored(w.values, rows.outliers[i]) - named;
        places[first + i] = uint16_t(rows.columns[i]);
      }
    }
    std::memcpy(panel + p.runs_at + lane * int64_t(sizeof(run)), &run, sizeof(run));
  });
}

}  // namespace penstock
