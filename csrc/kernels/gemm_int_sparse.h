// Sparse panels (gemm_int.h): where the codes of a run lie, and what expands them.
//
// VPEXPANDB puts the bytes that are held where a mask has ones and leaves others as they are, so a line
// is a load of 32 bytes, a mask and one instruction. Other instruction sets have no such panels.
#pragma once

#include "gemm_int_blocks.h"

#if defined(__AVX512VNNI__)
#define PENSTOCK_SPARSE_PANELS 1
#endif

namespace penstock {

constexpr int64_t kSparseRun = 32;    // k
constexpr int kSparseLines = 8;       // of a run, as bytes
constexpr int kSparseHeld = 2;        // of four
constexpr int64_t kSparseMaskBytes = kSparseLines * 8;
constexpr int64_t kSparseCodes = 32;  // bytes of a line of 8 bits, or of two of 4

constexpr int64_t sparse_run_bytes(int bits) {
  return kSparseMaskBytes + kSparseLines * bits / 8 * kSparseCodes;
}

// The panels that are expanded at once for many rows.
constexpr int kMostSparsePanels = 2;

// Whether this machine multiplies by sparse panels.
bool expands_sparse();

// What the panels are once they are expanded, which dense ones are already.
PanelView dense_of(const PanelView& p);

// Expand a panel. to: dense_of(p).panel_bytes, 64-byte aligned.
void expand_sparse_panel(const PanelView& p, const std::byte* panel, std::byte* to);

// A block of few rows by one panel or two, expanded on the way: IntMultiply.
IntMultiply int_sparse_multiply(const PanelView& p, int64_t rows, int panels);

}  // namespace penstock
