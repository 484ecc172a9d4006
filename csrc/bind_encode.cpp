#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings.h"
#include "kernels/encode_blocks.h"
#include "kernels/gemm_block_read.h"

namespace penstock {
namespace {

using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void encode(const std::string& name, const Values& values, const std::optional<Values>& importance,
            MutableBytes out) {
  const WeightFormat format = parse_block_format(name);
  expect(is_encoded(format), "no kernel rounds to blocks of this format");
  const BlockSize block = block_size(format);
  const size_t columns = size_t(block.columns);
  expect(values.size() % columns == 0, "values do not end with a block");
  const size_t blocks = values.size() / columns;
  expect(out.size() == blocks * size_t(block.bytes), "the output has the wrong size");
  size_t per_row = 1;
  if (importance) {
    expect(importance->size() > 0 && importance->size() % columns == 0,
           "importance does not end with a block");
    per_row = importance->size() / columns;
  }
  const nb::gil_scoped_release unlocked;
  encode_blocks(format, values.data(), int64_t(blocks), importance ? importance->data() : nullptr,
                int64_t(per_row), out.data());
}

// What a file's block of a format has, to be compared with what Python says of it.
nb::tuple size_of_block(const std::string& name) {
  const BlockSize block = block_size(parse_block_format(name));
  return nb::make_tuple(block.columns, block.bytes);
}

}  // namespace

void bind_encode(nb::module_& m) {
  using namespace nb::literals;
  m.def("encode_blocks", &encode, "format"_a, exact("values"), exact("importance").none(),
        exact("out"));
  m.def("block_size", &size_of_block, "format"_a);
}

}  // namespace penstock
