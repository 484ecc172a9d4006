// Matrix products with packed weights: out = x @ W^T + bias, optionally gated.
//
// The promise: an output element is one chain of accumulations over ascending k, in float32, whose
// order depends on the weights' element type and k alone. So a row's result is bitwise the same
// whether it is computed alone or among 512, at any position, on any number of threads.
//
// Panels. 16 output columns form a panel; panels follow each other without gaps.
//   bf16:     [N/16][K/2][16][2], K padded with zeros to a multiple of 32. A line of 64 bytes is 16
//             columns by one pair of k: the operand of VDPBF16PS and, 16 of them, an AMX tile.
//   f32, f16: [N/16][K][16].
// Columns past n in the last panel are zero. A gated matrix alternates panels: 16 columns of gate,
// the same 16 of up, each part padded to a multiple of 16 by itself.
#pragma once

#include "../caches.h"
#include "../types.h"
#include "gemm_tuning.h"

namespace penstock {

constexpr int kPanelColumns = 16;

enum class Activation : uint8_t { none, silu, gelu_tanh, gelu, relu, relu2, sigmoid, identity };

// What becomes of a gate and an up: activation(gate) * up; or, clamped, (u + 1) * g * sigmoid(alpha *
// g) with g = min(gate, limit) and u = up, clamped to -limit .. limit.
struct Gating {
  Activation activation;
  bool clamped = false;
  float limit = 0, alpha = 0;

  constexpr Gating(Activation kind = Activation::none) : activation(kind) {}
  static constexpr Gating clamped_swiglu(float limit, float alpha) {
    Gating gating(Activation::silu);
    gating.clamped = true, gating.limit = limit, gating.alpha = alpha;
    return gating;
  }
  constexpr bool is_none() const { return activation == Activation::none; }
};

// What a product reads: the rows of an array, or those of them that a list names, in its order.
struct InputRows : Array {
  const int32_t* list;

  InputRows(const Array& all, const int32_t* some = nullptr) : Array(all), list(some) {}
  template <class T>
  T* row(int64_t r) const {
    return Array::row<T>(list ? list[r] : r);
  }
};

struct PackedMatrix {
  Elem elem;   // f32, bf16 or f16
  int64_t n;   // output columns of linear(); a gated matrix holds twice as many
  int64_t k;
  bool gated;
  const std::byte* panels;  // packed_bytes() of them, 64-byte aligned
  const float* bias;        // [n], or gated [2][n] (gate, then up); null without
  Tuning tuning{
      .stream_ahead = floats_ahead(), .carry_bytes = 1 << 20, .shared_into_l2 = shared_into_l2(),
      .cache_bytes = second_level_cache()};
};

// Bytes of a matrix's panels: n columns, or n of gate and n of up.
size_t packed_bytes(Elem elem, int64_t n, int64_t k, bool gated = false);

inline size_t packed_bytes(const PackedMatrix& w) {
  return packed_bytes(w.elem, w.n, w.k, w.gated);
}

// Where the columns of a part (a row-major [n, k] array) go among the matrix's panels.
struct PartPlace {
  int64_t panel;  // of the part's first column
  int lane;       // of that column in its panel
  int stride;     // panels from one of the part's to its next
  bool pads_end;  // zero the columns left over in the part's last panel
};

// Part at output column `first` of `total`, as in joined queries, keys and values.
constexpr PartPlace joined_part(int64_t first, int64_t n, int64_t total) {
  return {first / kPanelColumns, int(first % kPanelColumns), 1, first + n == total};
}

// Part 0 (gate) or 1 (up) of a gated matrix.
constexpr PartPlace gated_part(int part) { return {part, 0, 2, true}; }

// Pack `rows`, of element `elem` and any alignment, into `panels` (the whole matrix's). Called by
// each of worker.count threads; parts need no barrier between them, linear() needs one before it.
void pack_part(Elem elem, const void* rows, int64_t n, int64_t k, PartPlace place,
               std::byte* panels, const Worker& worker);

// What follows is of PackedMatrix, IntMatrix (gemm_int.h), GridMatrix (gemm_grid.h), BlockMatrix
// (gemm_block.h) and CodebookMatrix (gemm_codebook.h).

// Scratch that linear() needs on each thread. Grows with rows, up to a bound; ask with the largest
// step's rows.
template <class Matrix>
size_t linear_scratch_bytes(const Matrix& w, int64_t rows);

// Memory that it needs besides, shared by the threads. Likewise.
template <class Matrix>
size_t linear_shared_bytes(const Matrix& w, int64_t rows);

// out = x @ W^T + bias, or gated act(x @ gate^T + b0) * (x @ up^T + b1). x [rows, k] and
// out [rows, n], each f32 or bf16, must not overlap. `gate` is read for gated matrices only.
// Called by each of worker.count threads, even one without columns, since there may be a barrier
// inside; each writes its own output columns. `shared` is the same memory on every thread, 64-byte
// aligned, and may serve every product in turn: the barrier after each is enough. Instruction sets
// with tile registers: the process must have been granted their use (arch_prctl) before.
template <class Matrix>
void linear(const Matrix& w, const Array& x, const Array& out, int64_t rows, Gating gate,
            std::byte* shared, const Worker& worker);

}  // namespace penstock
