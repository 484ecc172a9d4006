// How codebooks of rows lie in memory, the same for all instruction sets.
//
// A panel has first the values of its 16 columns, [16][2^bits]; then the runs of their outliers,
// [16] pairs of the first and how many; then codes, those of columns 0 to 7 and those of 8 to 15. Codes
// of eight columns are lines of 64 bytes, [lines][8], each of one column: 32 words of 16 bits. A step is
// 32 k, of which word i has k = i; a line has 4 steps of 4 bits, one above the other, or 5 of 3 bits, with
// a bit left over. Those of three lines, if there are three, are a sixteenth step: so 512 k take 192 bytes.
//
// Behind all panels lie the outliers, in the order of rows as they were packed: floats, by which weights
// exceed what their codes name, then their k, 16 bits each.
#pragma once

#include "gemm_codebook.h"
#include "gemm_cuts.h"

namespace penstock {

constexpr int64_t kCodebookStep = 32;      // k of a step
constexpr int kCodebookColumns = 8;        // whose lines alternate
constexpr int64_t kCodebookLine = kCodebookColumns * kLineBytes;  // from a column's line to its next

// Outliers of a column.
struct OutlierRun {
  uint32_t first, count;
};

// Lines of a column whose steps follow each other, and how many of these there are.
struct CodebookStretch {
  int64_t lines, steps;
};
constexpr CodebookStretch codebook_stretch(int bits, bool triple) {
  if (bits == 4) return {1, 4};
  return triple ? CodebookStretch{3, 16} : CodebookStretch{1, 5};
}

struct CodebookPanels {
  const std::byte* data;
  int bits;
  Elem values;
  int64_t triples;  // stretches of 3 lines, first
  int64_t singles;  // then those of one line
  int64_t runs_at, codes_at;
  int64_t half_bytes;  // of the codes of eight columns
  int64_t panel_bytes;
  int64_t units;
  int per_unit;
  int64_t outliers;
  Tuning tuning;

  explicit CodebookPanels(const CodebookMatrix& w)
      : data(w.panels),
        bits(w.bits),
        values(w.values),
        triples(w.bits == 4 ? 0 : w.k / 512 + (w.k % 512 > 480)),
        singles(w.bits == 4 ? ceil_div(w.k, 128)
                            : ceil_div(std::max<int64_t>(w.k - 512 * triples, 0), 160)),
        runs_at(kPanelColumns * (int64_t(elem_bytes(w.values)) << w.bits)),
        codes_at(runs_at + kPanelColumns * int64_t(sizeof(OutlierRun))),
        half_bytes((3 * triples + singles) * kCodebookLine),
        panel_bytes(codes_at + 2 * half_bytes),
        units(ceil_div(w.n, kPanelColumns)),
        per_unit(w.gated ? 2 : 1),
        outliers(w.outliers),
        tuning(w.tuning) {}

  int64_t steps() const {
    return triples * codebook_stretch(3, true).steps + singles * codebook_stretch(bits, false).steps;
  }
  const std::byte* panel(int64_t unit) const { return data + unit * per_unit * panel_bytes; }
  int64_t all_panels() const { return units * per_unit * panel_bytes; }
  const OutlierRun* runs(const std::byte* panel) const {
    return reinterpret_cast<const OutlierRun*>(panel + runs_at);
  }
  const float* excess() const { return reinterpret_cast<const float*>(data + all_panels()); }
  const uint16_t* places() const {
    return reinterpret_cast<const uint16_t*>(excess() + round_up(outliers, kLineBytes / 4));
  }
};

}  // namespace penstock
