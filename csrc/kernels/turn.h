// Rows turned for products with lattice points, and their outputs turned back: the `TurnRows` and
// `TurnBack` ops of backends/cpu/turned.py. quant/turn.py says what a turn is.
#pragma once

#include "../types.h"

namespace penstock {

// An orthogonal transform of rows: of each block of doubled * base columns.
struct Turn {
  const float* signs;  // [cols]
  const float* base_matrix;  // [base, base]: of Paley's matrix column by column, or, to turn back, row by row
  int64_t doubled, base;  // a power of two, and the order of Paley's matrix, or 1
  float factor;
};

struct TurnRowsArgs {
  Array x, out;  // [rows, cols] f32 or bf16; apart
  Turn turn;
};

// out = x, turned, rounded to out's element type. Sums and differences at ascending distances come
// first, then sums over the columns of the base, ascending, by fused multiply-add; so bits are the same
// on every instruction set. Each worker takes whole rows.
void turn_rows(const TurnRowsArgs& args, int64_t rows, const Worker& worker);

struct TurnBackArgs {
  Array x;       // [rows, columns] f32
  Array second;  // likewise; no data: none
  Array out;     // [rows, cols] f32 or bf16; apart from both
  int64_t first;  // the column of x that is out's first
  float by;      // what second is multiplied by
  const float* scale;  // [1]
  const float* bias;   // [cols]; null: none
  Turn turn;
};

// out = scale * (x + by * second), turned back, + bias.
void turn_back(const TurnBackArgs& args, int64_t rows, const Worker& worker);

// Of scratch that both need for rows of so many columns.
constexpr size_t turn_scratch_bytes(int64_t cols, int64_t base) {
  return size_t(cols + base + 32) * sizeof(float);
}

}  // namespace penstock
