// Which path the product of a matrix with rows of a type takes, and what gemm.h and gemm_units.h
// promise, by it.
#include "gemm_kernels.h"

namespace penstock {
namespace {

// Calls f with a matrix's panels and, as std::type_identity, its Product with x of type `x`.
template <class F>
auto with_product(const PackedMatrix& w, Elem x, F&& f) {
  const Panels p(w);
#if defined(__AMX_BF16__)
  if (w.elem == Elem::bf16 && x == Elem::bf16)
    return f(p, std::type_identity<FloatProduct<TilePath>>());
#endif
  return with_registers(w.elem, x, [&](auto product) { return f(p, product); });
}

template <class Path, class F>
auto with_quantized(const PanelView& p, bool weight_only, Elem x, F&& f) {
  if (!weight_only) return f(p, std::type_identity<Product<Path>>());
#if defined(__AMX_BF16__)
  if (x == Elem::bf16) return f(p, std::type_identity<Product<TilePointsPath>>());
#elif defined(PENSTOCK_BF16_DOTS)
  if (x == Elem::bf16) return f(p, std::type_identity<Product<PointPath<PairOperand>>>());
#endif
  return (void)x, f(p, std::type_identity<Product<PointPath<FloatOperand>>>());
}
template <class F>
auto with_product(const IntMatrix& w, Elem x, F&& f) {
  return with_quantized<IntPath>(panels_of(w), w.weight_only, x, f);
}
template <class F>
auto with_product(const GridMatrix& w, Elem x, F&& f) {
  return with_quantized<GridPath>(panels_of(w), w.weight_only, x, f);
}
template <class F>
auto with_product(const BlockMatrix& w, Elem x, F&& f) {
  const PanelView p = panels_of(w);
  if (!w.weight_only) return f(p, std::type_identity<Product<FilePath<ByteOperand>>>());
#if defined(__AMX_BF16__)
  if (x == Elem::bf16 && of_lattice(w.format))
    return f(p, std::type_identity<Product<TileLatticePath>>());
#endif
#if defined(PENSTOCK_BF16_DOTS)
  if (x == Elem::bf16) return f(p, std::type_identity<Product<FilePath<PairOperand>>>());
#endif
  return (void)x, f(p, std::type_identity<Product<FilePath<FloatOperand>>>());
}

template <class F>
auto with_product(const CodebookMatrix& w, Elem x, F&& f) {
  const CodebookPanels p(w);
#if defined(__AVX512BF16__)
  if (x == Elem::bf16 && w.values == Elem::bf16)
    return f(p, std::type_identity<CodebookProduct<PairCodebook>>());
#endif
  return (void)x, f(p, std::type_identity<CodebookProduct<FloatCodebook>>());
}

// The most of bytes(panels, Product), whatever x is.
template <class Matrix, class Bytes>
size_t most(const Matrix& w, Bytes&& bytes) {
  return size_t(std::max<int64_t>(with_product(w, Elem::f32, bytes),
                                  with_product(w, Elem::bf16, bytes)));
}

}  // namespace

template <class Matrix>
void linear(const Matrix& w, const Array& x, const Array& out, int64_t rows, Gating gate,
            std::byte* shared, const Worker& worker) {
  const Epilogue e{w.bias, out, w.n, w.gated, gate};
  with_product(w, x.elem, [&](const auto& p, auto product) {
    decltype(product)::type::run(p, x, e, rows, shared, worker);
  });
}

template <class Matrix>
void linear_units(const Matrix& w, const InputRows& x, const Epilogue& e, int64_t rows,
                  Range units, bool ready, std::byte* scratch) {
  with_product(w, x.elem, [&](const auto& p, auto product) {
    decltype(product)::type::run_units(p, x, e, rows, units, ready, scratch);
  });
}

template <class Matrix>
size_t linear_scratch_bytes(const Matrix& w, int64_t rows) {
  return most(w, [&](const auto& p, auto product) {
    return decltype(product)::type::scratch_bytes(p, rows);
  });
}

template <class Matrix>
size_t linear_shared_bytes(const Matrix& w, int64_t rows) {
  return most(w, [&](const auto& p, auto product) {
    return decltype(product)::type::shared_bytes(p, rows);
  });
}

template <class Matrix>
size_t linear_units_scratch_bytes(const Matrix& w, int64_t rows) {
  return most(w, [&](const auto& p, auto product) {
    return decltype(product)::type::units_scratch_bytes(p, rows);
  });
}

#define PENSTOCK_PRODUCTS_OF(Matrix)                                                            \
  template void linear(const Matrix&, const Array&, const Array&, int64_t, Gating, std::byte*,  \
                       const Worker&);                                                          \
  template void linear_units(const Matrix&, const InputRows&, const Epilogue&, int64_t, Range,  \
                             bool, std::byte*);                                                 \
  template size_t linear_scratch_bytes(const Matrix&, int64_t);                                 \
  template size_t linear_shared_bytes(const Matrix&, int64_t);                                  \
  template size_t linear_units_scratch_bytes(const Matrix&, int64_t)
PENSTOCK_PRODUCTS_OF(PackedMatrix);
PENSTOCK_PRODUCTS_OF(IntMatrix);
PENSTOCK_PRODUCTS_OF(GridMatrix);
PENSTOCK_PRODUCTS_OF(BlockMatrix);
PENSTOCK_PRODUCTS_OF(CodebookMatrix);
#undef PENSTOCK_PRODUCTS_OF

}  // namespace penstock
