#include "gemm_quantized_py.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "../bindings.h"
#include "../memory.h"
#include "../pool.h"
#include "gemm_int_sparse.h"
#include "gemm_block.h"
#include "gemm_codebook.h"
#include "gemm_grid.h"
#include "gemm_int.h"

namespace penstock {
namespace {

using namespace nb::literals;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Windows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableCodes = nb::ndarray<int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableWindows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// What a product takes beside its weights.
struct Operands {
  std::optional<Floats> bias;
  std::string gate;
  Bytes x;
  std::string x_elem;
  MutableBytes out;
  std::string out_elem;
  int threads;
};

// The product with a matrix of `sizes` rows in parts, joined, or gate and up with an activation.
// pack(part, matrix, place, panels, worker) packs one of them.
template <class Matrix, class Pack>
void multiply(Matrix matrix, const std::vector<int64_t>& sizes, const Operands& o, Pack&& pack) {
  const Elem in = parse_activation_elem(o.x_elem), to = parse_activation_elem(o.out_elem);
  const Activation activation = parse_activation(o.gate);
  matrix.gated = activation != Activation::none;
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  expect(!matrix.gated || (sizes.size() == 2 && sizes[0] == sizes[1]),
         "a gated matrix has two parts of one size");
  matrix.n = matrix.gated ? total / 2 : total;
  const int64_t rows = rows_in(o.x.size(), matrix.k, in);
  expect(rows_in(o.out.size(), matrix.n, to) == rows, "the output has the wrong size");
  expect(!o.bias || int64_t(o.bias->size()) == total,
         "a bias has one number a row of the parts");
  matrix.bias = o.bias ? o.bias->data() : nullptr;

  Pool pool(o.threads, false);
  const Memory panels(packed_bytes(matrix));
  matrix.panels = panels.data();
  int64_t first = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const PartPlace place =
        matrix.gated ? gated_part(int(i)) : joined_part(first, sizes[i], matrix.n);
    pool.run([&](Worker& worker) { pack(i, matrix, place, panels.data(), worker); });
    first += sizes[i];
  }
  pool.reserve_scratch(linear_scratch_bytes(matrix, rows));
  const Memory shared(linear_shared_bytes(matrix, rows));
  auto* from = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(o.x.data()));  // only read
  const Array a{from, in, matrix.k};
  const Array y{reinterpret_cast<std::byte*>(o.out.data()), to, matrix.n};
  pool.run([&](Worker& worker) {
    linear(matrix, a, y, rows, activation, shared.data(), worker);
  });
}

// parts: (codes [n, k], scales [n, groups], zeros [n, groups] or None for all)
using IntPart = std::tuple<Codes, Scales, std::optional<Codes>>;

void run_int_linear(const std::vector<IntPart>& parts, int bits, int64_t group,
                    std::optional<Floats> bias, const std::string& gate, const Bytes& x,
                    const std::string& x_elem, MutableBytes out, const std::string& out_elem,
                    bool weight_only, bool sparse, int threads) {
  expect(!sparse || (expands_sparse() && !weight_only), "no sparse panels");
  expect(!parts.empty() && (bits == 8 || bits == 4) && group >= 0 && group % 32 == 0 &&
             group <= kMostIntDepth && (!weight_only || has_points(group)),
         "no such matrix");
  const int64_t k = int64_t(std::get<0>(parts[0]).shape(1));
  expect(k >= 1 && k <= kMostIntDepth, "a row has the wrong size");
  std::vector<int64_t> sizes;
  const bool zero_points = std::get<2>(parts[0]).has_value();
  for (const auto& [codes, scales, zeros] : parts) {
    expect(int64_t(codes.shape(1)) == k && codes.shape(0) == scales.shape(0) &&
               int64_t(scales.shape(1)) == int_groups(k, group) &&
               zeros.has_value() == zero_points && (!zeros || zeros->size() == scales.size()),
           "a part has the wrong shape");
    expect(codes.shape(0) >= 1, "a part has rows");
    sizes.push_back(int64_t(codes.shape(0)));
  }
  std::atomic<bool> fits = true;
  multiply(IntMatrix{bits, group, 0, k, false, {}, {}, zero_points, weight_only, sparse}, sizes,
           {bias, gate, x, x_elem, out, out_elem, threads},
           [&](size_t i, const IntMatrix& w, PartPlace place, std::byte* panels, Worker& worker) {
             const auto& [codes, scales, zeros] = parts[i];
             const GroupRows rows{codes.data(), scales.data(), zeros ? zeros->data() : nullptr};
             if (!pack_int_part(w, rows, sizes[i], place, panels, worker)) fits = false;
           });
  expect(fits, "the matrix is not sparse");
}

// parts: (codes [n, k], windows [n, ceil(k / kGridGroup)] or of no rows with 8 bits, scales [n])
void run_grid_linear(const std::vector<std::tuple<Codes, Windows, Floats>>& parts, int bits,
                     std::optional<Floats> bias, const std::string& gate, const Bytes& x,
                     const std::string& x_elem, MutableBytes out, const std::string& out_elem,
                     bool weight_only, int threads) {
  expect(!parts.empty() && (bits == 8 || bits == 4), "no such matrix");
  const int64_t k = int64_t(std::get<0>(parts[0]).shape(1));
  expect(k >= 1 && k <= kMostGridDepth, "a row has the wrong size");
  std::vector<int64_t> sizes;
  for (const auto& [codes, windows, scales] : parts) {
    const int64_t n = int64_t(codes.shape(0));
    expect(int64_t(codes.shape(1)) == k && int64_t(scales.shape(0)) == n &&
               int64_t(windows.size()) ==
                   (bits == 4 ? n * ((k + kGridGroup - 1) / kGridGroup) : 0),
           "a part has the wrong shape");
    expect(n >= 1, "a part has rows");
    sizes.push_back(n);
  }
  multiply(GridMatrix{bits, 0, k, false, {}, {}, weight_only}, sizes,
           {bias, gate, x, x_elem, out, out_elem, threads},
           [&](size_t i, const GridMatrix& w, PartPlace place, std::byte* panels, Worker& worker) {
             const auto& [codes, windows, scales] = parts[i];
             const GridRows rows{codes.data(), windows.data(), scales.data()};
             pack_grid_part(w, rows, sizes[i], place, panels, worker);
           });
}

// parts: uint8 [n, bytes of a row's blocks]
void run_block_linear(const std::vector<Windows>& parts, const std::string& format, int64_t k,
                      std::optional<Floats> bias, const std::string& gate, const Bytes& x,
                      const std::string& x_elem, MutableBytes out, const std::string& out_elem,
                      bool weight_only, int threads) {
  const WeightFormat type = parse_block_format(format);
  expect(!parts.empty() && k >= 1 && k <= kMostBlockDepth, "no such matrix");
  expect(weight_only || has_whole_points(type), "this format is for float activations alone");
  const int64_t row_bytes = block_row_bytes(type, k);
  std::vector<int64_t> sizes;
  for (const Windows& rows : parts) {
    expect(row_bytes > 0 && int64_t(rows.shape(1)) == row_bytes, "a row is no whole blocks");
    expect(rows.shape(0) >= 1, "a part has rows");
    sizes.push_back(int64_t(rows.shape(0)));
  }
  multiply(BlockMatrix{type, 0, k, false, {}, {}, weight_only}, sizes,
           {bias, gate, x, x_elem, out, out_elem, threads},
           [&](size_t i, const BlockMatrix& w, PartPlace place, std::byte* panels, Worker& worker) {
             pack_block_part(w, reinterpret_cast<const std::byte*>(parts[i].data()), sizes[i], place,
                             panels, worker);
           });
}

// parts: (bytes of the codes of all rows, values [n, 2^bits], ends [n + 1], columns, outliers)
using CodebookPart = std::tuple<Bytes, Scales, Ints, Ints, Floats>;

void run_codebook_linear(const std::vector<CodebookPart>& parts, int bits, const std::string& values,
                         int64_t k, std::optional<Floats> bias, const std::string& gate,
                         const Bytes& x, const std::string& x_elem, MutableBytes out,
                         const std::string& out_elem, int threads) {
  expect(!parts.empty() && (bits == 3 || bits == 4) && k >= 1 && k <= kMostCodebookDepth,
         "no such matrix");
  std::vector<int64_t> sizes, firsts;
  CodebookMatrix matrix{bits, parse_activation_elem(values), 0, k, false, 0, {}, {}};
  for (const auto& [codes, books, ends, columns, outliers] : parts) {
    const int64_t n = int64_t(books.shape(0));
    expect(n >= 1 && int64_t(codes.size()) == n * codebook_row_bytes(bits, k) &&
               int64_t(books.shape(1)) == int64_t(1) << bits && int64_t(ends.size()) == n + 1 &&
               columns.size() == outliers.size() &&
               outliers_in_order(matrix, {ends.data(), ends.size()}, {columns.data(), columns.size()}),
           "a part has the wrong shape");
    sizes.push_back(n);
    firsts.push_back(matrix.outliers);
    matrix.outliers += int64_t(outliers.size());
  }
  multiply(matrix, sizes, {bias, gate, x, x_elem, out, out_elem, threads},
           [&](size_t i, const CodebookMatrix& w, PartPlace place, std::byte* panels, Worker& worker) {
             const auto& [codes, books, ends, columns, outliers] = parts[i];
             const CodebookRows rows{reinterpret_cast<const std::byte*>(codes.data()), books.data(),
                                     ends.data(), columns.data(), outliers.data()};
             pack_codebook_part(w, rows, sizes[i], firsts[i], place, panels, worker);
           });
}

// False if a value is not finite.
bool run_quantize_grid(const Bytes& rows, const std::string& elem, int bits, bool transformed,
                       MutableCodes codes, MutableWindows windows, MutableFloats scales) {
  const Elem type = parse_float_elem(elem);
  const int64_t n = int64_t(codes.shape(0)), k = int64_t(codes.shape(1));
  expect((bits == 8 || bits == 4) && k >= 1, "no such matrix");
  const int64_t groups = bits == 4 ? (k + kGridGroup - 1) / kGridGroup : 0;
  const int64_t row_bytes = k * int64_t(elem_bytes(type));
  expect(int64_t(rows.size()) == n * row_bytes && int64_t(windows.size()) == n * groups &&
             int64_t(scales.size()) == n,
         "rows, codes, windows and scales differ in shape");
  std::vector<float> scratch;
  bool finite = true;
  for (int64_t r = 0; r < n; ++r)
    finite &= quantize_grid_row(bits, type, transformed, span_of(rows).data() + r * row_bytes, k,
                                codes.data() + r * k,
                                bits == 4 ? windows.data() + r * groups : nullptr,
                                scales.data()[r], scratch);
  return finite;
}

}  // namespace

void bind_quantized_linear(nb::module_& m) {
  m.def("int_linear", &run_int_linear, nb::kw_only(), exact("parts"), "bits"_a, "group"_a,
        exact("bias").none(), "gate"_a, exact("x"), "x_elem"_a, exact("out"), "out_elem"_a,
        "weight_only"_a = false, "sparse"_a = false, "threads"_a);
  m.def("grid_linear", &run_grid_linear, nb::kw_only(), exact("parts"), "bits"_a,
        exact("bias").none(), "gate"_a, exact("x"), "x_elem"_a, exact("out"), "out_elem"_a,
        "weight_only"_a = false, "threads"_a);
  m.def("block_linear", &run_block_linear, nb::kw_only(), exact("parts"), "format"_a, "k"_a,
        exact("bias").none(), "gate"_a, exact("x"), "x_elem"_a, exact("out"), "out_elem"_a,
        "weight_only"_a = false, "threads"_a);
  m.def("codebook_linear", &run_codebook_linear, nb::kw_only(), exact("parts"), "bits"_a, "values"_a,
        "k"_a, exact("bias").none(), "gate"_a, exact("x"), "x_elem"_a, exact("out"), "out_elem"_a,
        "threads"_a);
  m.def("quantize_grid", &run_quantize_grid, nb::kw_only(), exact("rows"), "elem"_a, "bits"_a,
        "transformed"_a, exact("codes"), exact("windows"), exact("scales"));
}

}  // namespace penstock
