#include <nanobind/stl/string.h>

#include "bindings.h"
#include "kernels/gram.h"

namespace penstock {
namespace {

using namespace nb::literals;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Sums = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void add(Gram& self, const Rows& rows, Sums sums) {
  const int64_t columns = int64_t(rows.shape(1));
  expect(columns >= 1, "rows have at least one column");
  expect(int64_t(sums.shape(0)) == columns && int64_t(sums.shape(1)) == columns,
         "sums are as many as pairs of columns");
  if (rows.shape(0) == 0) return;
  expect(rows.stride(1) == 1 && (rows.shape(0) == 1 || rows.stride(0) >= columns),
         "columns of a row are not neighbours in memory");
  const nb::gil_scoped_release unlocked;
  self.add(rows.data(), int64_t(rows.shape(0)), columns, rows.stride(0), sums.data());
}

}  // namespace

void bind_gram(nb::module_& m) {
  nb::class_<Gram>(m, "Gram")
      .def("__init__",
           [](Gram* self, int threads, const std::string& elem) {
             new (self) Gram(threads, parse_activation_elem(elem));
           },
           "threads"_a, "elem"_a)
      .def_prop_ro_static("block", [](nb::handle) { return Gram::kBlock; })
      .def("add", &add, exact("rows"), exact("sums"));
}

}  // namespace penstock
