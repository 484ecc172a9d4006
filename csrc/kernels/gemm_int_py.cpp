#include "gemm_int_py.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../bindings.h"
#include "../memory.h"
#include "../pool.h"
#include "gemm_int.h"

namespace penstock {
namespace {

using namespace nb::literals;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// parts: (codes [n, k], scales [n, groups]), joined, or gate and up with an activation.
void run_int_linear(const std::vector<std::pair<Codes, Scales>>& parts, int bits, int64_t group,
                    std::optional<Floats> bias, const std::string& gate, const Bytes& x,
                    const std::string& x_elem, MutableBytes out, const std::string& out_elem,
                    int threads) {
  expect(!parts.empty() && (bits == 8 || bits == 4) && group % 32 == 0, "no such matrix");
  const int64_t k = int64_t(parts[0].first.shape(1));
  const Elem in = parse_elem(x_elem), to = parse_elem(out_elem);
  const Activation activation = parse_activation(gate);
  const bool gated = activation != Activation::none;
  int64_t total = 0;
  for (const auto& [codes, scales] : parts) {
    expect(int64_t(codes.shape(1)) == k && codes.shape(0) == scales.shape(0) &&
               int64_t(scales.shape(1)) == int_groups(k, group),
           "a part has the wrong shape");
    total += int64_t(codes.shape(0));
  }
  expect(!gated || (parts.size() == 2 && parts[0].first.shape(0) == parts[1].first.shape(0)),
         "a gated matrix has two parts of one size");
  const int64_t n = gated ? total / 2 : total;
  const int64_t rows = int64_t(x.size() / (size_t(k) * elem_bytes(in)));
  expect(out.size() == size_t(rows * n) * elem_bytes(to), "the output has the wrong size");
  expect(!bias || int64_t(bias->size()) == total, "a bias has one number a row of the parts");

  Pool pool(threads, false);
  IntMatrix matrix{bits, group, n, k, gated, nullptr, bias ? bias->data() : nullptr};
  const Memory panels(int_packed_bytes(matrix));
  matrix.panels = panels.data();
  int64_t first = 0;
  for (const auto& [codes, scales] : parts) {
    const int64_t count = int64_t(codes.shape(0));
    const PartPlace place = gated ? gated_part(first != 0) : joined_part(first, count, n);
    pool.run([&, &codes = codes, &scales = scales](Worker& worker) {
      pack_int_part(matrix, codes.data(), scales.data(), count, place, panels.data(), worker);
    });
    first += count;
  }
  pool.reserve_scratch(int_scratch_bytes(matrix, rows));
  const Memory shared(int_shared_bytes(matrix, rows));
  auto* from = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(x.data()));  // only read
  const Array a{from, in, k}, y{reinterpret_cast<std::byte*>(out.data()), to, n};
  pool.run([&](Worker& worker) {
    int_linear(matrix, a, y, rows, activation, shared.data(), worker);
  });
}

}  // namespace

void bind_int_linear(nb::module_& m) {
  m.def("int_linear", &run_int_linear, nb::kw_only(), "parts"_a, "bits"_a, "group"_a,
        "bias"_a.none(), "gate"_a, "x"_a, "x_elem"_a, "out"_a, "out_elem"_a, "threads"_a);
}

}  // namespace penstock
