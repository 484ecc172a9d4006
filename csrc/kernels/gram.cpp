#include "gram.h"

#include <algorithm>

#include "../simd.h"
#include "gemm.h"

namespace penstock {
namespace {

// Rows of one product, so that memory has a bound: two copies of them, in the element type.
constexpr int64_t kMostRows = 2048;
constexpr int64_t kTile = 64;  // of rows and columns that are turned together

// to[c][r] = from[r][c], rounded to T, for the columns of a worker. A tile is read by rows and written by
// columns: read by columns, rows that are a power of two apart would push each other out of the cache.
template <class T>
void turn(const float* from, int64_t stride, int64_t rows, int64_t columns, T* to, const Worker& worker) {
  const Share mine = share((columns + kTile - 1) / kTile, worker);
  alignas(64) T tile[kTile][kTile + 64 / sizeof(T)];
  for (int64_t c0 = mine.begin * kTile; c0 < std::min(mine.end * kTile, columns); c0 += kTile)
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
      const int64_t width = std::min(kTile, columns - c0), height = std::min(kTile, rows - r0);
      for (int64_t r = 0; r < height; ++r)
        for (int64_t c = 0; c < width; ++c) {
          const float x = from[(r0 + r) * stride + c0 + c];
          if constexpr (std::is_same_v<T, bf16>) tile[r][c] = to_bf16(x);
          else tile[r][c] = x;
        }
      for (int64_t c = 0; c < width; ++c)
        for (int64_t r = 0; r < height; ++r) to[(c0 + c) * rows + r0 + r] = tile[r][c];
    }
}

void enlarge(Memory& memory, size_t bytes) {
  if (memory.bytes() < bytes) memory = Memory(bytes);
}

}  // namespace

void Gram::add(const float* rows, int64_t tokens, int64_t columns, int64_t stride, float* sums) {
  for (int64_t first = 0; first < tokens; first += kMostRows)
    add_some(rows + first * stride, std::min(kMostRows, tokens - first), columns, stride, sums);
}

void Gram::add_some(const float* rows, int64_t tokens, int64_t columns, int64_t stride, float* sums) {
  enlarge(turned_, size_t(tokens * columns) * elem_bytes(elem_));
  enlarge(panels_, packed_bytes(elem_, columns, tokens));
  enlarge(made_, size_t(std::min(kBlock, columns) * columns) * sizeof(float));
  PackedMatrix all{elem_, columns, tokens, false, panels_.data(), nullptr};
  pool_.reserve_scratch(linear_scratch_bytes(all, kBlock));
  enlarge(shared_, linear_shared_bytes(all, kBlock));
  pool_.run([&](Worker& worker) {
    if (elem_ == Elem::bf16)
      turn(rows, stride, tokens, columns, reinterpret_cast<bf16*>(turned_.data()), worker);
    else
      turn(rows, stride, tokens, columns, reinterpret_cast<float*>(turned_.data()), worker);
    worker.barrier->wait(worker);
    pack_part(elem_, turned_.data(), columns, tokens, joined_part(0, columns, columns), panels_.data(), worker);
    worker.barrier->wait(worker);
    for (int64_t first = 0; first < columns; first += kBlock) {
      const int64_t end = std::min(first + kBlock, columns), count = end - first;
      PackedMatrix some = all;
      some.n = end;
      const Array x{turned_.data() + size_t(first * tokens) * elem_bytes(elem_), elem_, tokens};
      const Array made{made_.data(), Elem::f32, end};
      linear(some, x, made, count, Activation::none, shared_.data(), worker);
      worker.barrier->wait(worker);
      const Share mine = share(count, worker);
      for (int64_t r = mine.begin; r < mine.end; ++r) {
        const float* const from = made.row<const float>(r);
        float* const to = sums + (first + r) * columns;
        for (int64_t c = 0; c < end; ++c) to[c] += from[c];
      }
      worker.barrier->wait(worker);
    }
  });
}

}  // namespace penstock
