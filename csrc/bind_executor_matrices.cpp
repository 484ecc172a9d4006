// Matrices of penstock::Executor in Python: how they are packed, tuned and timed.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind_executor.h"
#include "bindings.h"

namespace penstock {

namespace {

using namespace nb::literals;

using Outliers = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const int8_t> or_empty(const std::optional<Codes>& codes) {
  if (!codes) return {};
  return {codes->data(), codes->size()};
}

std::span<int8_t> or_empty(const std::optional<MutableCodes>& codes) {
  if (!codes) return {};
  return {codes->data(), codes->size()};
}

}  // namespace

void bind_matrices(nb::class_<PyExecutor>& executor) {
  executor
      .def(
          "add_matrix",
          [](PyExecutor& self, const std::string& elem, int64_t n, int64_t k, bool gated,
             int64_t experts) {
            return self.get().add_matrix(PackedMatrix{parse_elem(elem), n, k, gated, {}, {}},
                                         experts);
          },
          "elem"_a, "n"_a, "k"_a, "gated"_a, "experts"_a = 1)
      .def(
          "pack_rows",
          [](PyExecutor& self, MatrixId matrix, int64_t first, int64_t count, const Bytes& rows) {
            nb::gil_scoped_release unlocked;
            self.get().pack_rows(matrix, first, count, span_of(rows));
          },
          "matrix"_a, "first"_a, "count"_a, exact("rows"))
      .def(
          "add_int_matrix",
          [](PyExecutor& self, int bits, int64_t group, int64_t n, int64_t k, bool gated,
             bool zero_points, bool weight_only, bool sparse, int64_t experts) {
            return self.get().add_matrix(
                IntMatrix{bits, group, n, k, gated, {}, {}, zero_points, weight_only, sparse},
                experts);
          },
          nb::kw_only(), "bits"_a, "group"_a, "n"_a, "k"_a, "gated"_a, "zero_points"_a,
          "weight_only"_a, "sparse"_a = false, "experts"_a = 1)
      .def(
          "pack_int_rows",
          [](PyExecutor& self, MatrixId matrix, int64_t first, int64_t count, const Codes& codes,
             const Scales& scales, const std::optional<Codes>& zeros) {
            nb::gil_scoped_release unlocked;
            return self.get().pack_int_rows(matrix, first, count, {codes.data(), codes.size()},
                                     {scales.data(), scales.size()}, or_empty(zeros));
          },
          "matrix"_a, "first"_a, "count"_a, exact("codes"), exact("scales"), exact("zeros").none())
      .def(
          "add_grid_matrix",
          [](PyExecutor& self, int bits, int64_t n, int64_t k, bool gated, bool weight_only,
             int64_t experts) {
            return self.get().add_matrix(GridMatrix{bits, n, k, gated, {}, {}, weight_only},
                                         experts);
          },
          nb::kw_only(), "bits"_a, "n"_a, "k"_a, "gated"_a, "weight_only"_a, "experts"_a = 1)
      .def(
          "pack_grid_rows",
          [](PyExecutor& self, MatrixId matrix, int64_t first, int64_t count,
             const std::string& elem, const Bytes& rows) {
            const Elem type = parse_elem(elem);
            nb::gil_scoped_release unlocked;
            return self.get().pack_grid_rows(matrix, first, count, type, span_of(rows));
          },
          "matrix"_a, "first"_a, "count"_a, "elem"_a, exact("rows"))
      .def(
          "add_block_matrix",
          [](PyExecutor& self, const std::string& format, int64_t n, int64_t k, bool gated,
             bool weight_only, int64_t experts) {
            return self.get().add_matrix(
                BlockMatrix{parse_block_format(format), n, k, gated, {}, {}, weight_only}, experts);
          },
          nb::kw_only(), "format"_a, "n"_a, "k"_a, "gated"_a, "weight_only"_a, "experts"_a = 1)
      .def(
          "pack_block_rows",
          [](PyExecutor& self, MatrixId matrix, int64_t first, int64_t count, const Bytes& rows) {
            nb::gil_scoped_release unlocked;
            self.get().pack_block_rows(matrix, first, count, span_of(rows));
          },
          "matrix"_a, "first"_a, "count"_a, exact("rows"))
      .def(
          "add_codebook_matrix",
          [](PyExecutor& self, int bits, const std::string& values, int64_t n, int64_t k, bool gated,
             int64_t outliers) {
            return self.get().add_matrix(
                CodebookMatrix{bits, parse_elem(values), n, k, gated, outliers, {}, {}});
          },
          nb::kw_only(), "bits"_a, "values"_a, "n"_a, "k"_a, "gated"_a, "outliers"_a)
      .def(
          "pack_codebook_rows",
          [](PyExecutor& self, MatrixId matrix, int64_t first, const Bytes& codes,
             const Scales& values, const Ints& ends, const Ints& columns, const Outliers& outliers,
             int64_t first_outlier) {
            nb::gil_scoped_release unlocked;
            self.get().pack_codebook_rows(matrix, first, int64_t(values.shape(0)), span_of(codes),
                                          {values.data(), values.size()}, {ends.data(), ends.size()},
                                          {columns.data(), columns.size()},
                                          {outliers.data(), outliers.size()}, first_outlier);
          },
          "matrix"_a, "first"_a, exact("codes"), exact("values"), exact("ends"), exact("columns"),
          exact("outliers"), "first_outlier"_a)
      .def(
          "round_rows",
          [](PyExecutor& self, const std::string& elem, const Bytes& rows, int bits, int64_t group,
             MutableCodes codes, MutableScales scales, std::optional<MutableCodes> zeros) {
            nb::gil_scoped_release unlocked;
            self.get().round_rows(parse_elem(elem), span_of(rows), int64_t(codes.shape(0)),
                                  int64_t(codes.shape(1)), bits, group,
                                  {codes.data(), codes.size()}, {scales.data(), scales.size()},
                                  or_empty(zeros));
          },
          "elem"_a, exact("rows"), "bits"_a, "group"_a, exact("codes"), exact("scales"),
          exact("zeros").none())
      .def("parameters",
           [](PyExecutor& self, MatrixId matrix) {
             nb::dict found;
             for (const Executor::Parameter& p : self.get().parameters(matrix))
               found[nb::str(p.name.data(), p.name.size())] =
                   nb::make_tuple(p.value, p.least, p.most);
             return found;
           },
           "matrix"_a)
      .def(
          "set_parameter",
          [](PyExecutor& self, MatrixId matrix, const std::string& name, int64_t value) {
            self.get().set_parameter(matrix, name, value);
          },
          "matrix"_a, "name"_a, "value"_a)
      .def(
          "product_rows",
          [](const PyExecutor& self, MatrixId matrix) { return self.get().product_rows(matrix); },
          "matrix"_a)
      .def(
          "fill_inputs",
          [](PyExecutor& self, const std::vector<MatrixId>& matrices, int64_t rows) {
            Executor& executor = self.get();
            nb::gil_scoped_release unlocked;
            executor.fill_inputs(matrices, rows);
          },
          "matrices"_a, "rows"_a)
      .def(
          "time_product",
          [](PyExecutor& self, MatrixId matrix, int64_t rows) {
            Executor& executor = self.get();
            nb::gil_scoped_release unlocked;
            return executor.time_product(matrix, rows);
          },
          "matrix"_a, "rows"_a);
}

}  // namespace penstock
