// The paths that products choose from. Which exist depends on the instruction set.
#pragma once

#include <type_traits>

#include "../bf16_dots.h"
#include "gemm_codebook_panels.h"
#include "gemm_panels.h"
#include "gemm_units.h"

namespace penstock {

// The product that a path carries out (gemm_product.h), for panels seen as a View.
template <class Path, class View = PanelView>
struct Product {
  // As linear(): called by every thread.
  static void run(const View& p, const InputRows& x, const Epilogue& e, int64_t rows,
                  std::byte* shared, const Worker& worker);
  static int64_t scratch_bytes(const View& p, int64_t rows);
  static int64_t shared_bytes(const View& p, int64_t rows);

  // As linear_units(), for any number of rows; with more than a row block none stay ready.
  static void run_units(const View& p, const InputRows& x, const Epilogue& e, int64_t rows,
                        Range units, bool ready, std::byte* scratch);
  static int64_t units_scratch_bytes(const View& p, int64_t rows);
};

template <class Path>
using FloatProduct = Product<Path, Panels>;

// Weights and x in floating point: any pair of types in float32; bfloat16 by dots of pairs, and on
// tile registers.
template <class Weight, class X>
struct FmaPath;
struct DotPath;
struct TilePath;

// Quantized weights and rows: by groups, and on the 8-bit grid.
struct IntPath;
struct GridPath;

// Weights in blocks of files, as bytes by rounded rows, or alone (gemm_block_operands.h); and by groups
// and on the grid, alone (gemm_points_format.h).
template <class Operand, class Formats>
class BlockPath;
struct ByteOperand;
struct PairOperand;
struct FloatOperand;
struct FileFormats;
struct PointFormats;
template <class Operand>
using FilePath = BlockPath<Operand, FileFormats>;
template <class Operand>
using PointPath = BlockPath<Operand, PointFormats>;

// Likewise of bfloat16 on tile registers; and of lattice points.
struct TilePointsPath;
struct TileLatticePath;

// Weights in codebooks of rows (gemm_codebook_operands.h).
template <class Operand>
class CodebookPath;
struct PairCodebook;
struct FloatCodebook;
template <class Operand>
using CodebookProduct = Product<CodebookPath<Operand>, CodebookPanels>;

// Calls f with what vector registers do of a product of floats, as std::type_identity<Product>.
template <class F>
auto with_registers(Elem weights, Elem x, F&& f) {
  const auto with = [&]<class Weight>(Weight) {
    return x == Elem::f32 ? f(std::type_identity<FloatProduct<FmaPath<Weight, float>>>())
                          : f(std::type_identity<FloatProduct<FmaPath<Weight, bf16>>>());
  };
  if (weights == Elem::f32) return with(float());
  if (weights == Elem::f16) return with(f16());
#if defined(PENSTOCK_BF16_DOTS)
  if (x == Elem::bf16) return f(std::type_identity<FloatProduct<DotPath>>());
#endif
  return with(bf16());
}

}  // namespace penstock
