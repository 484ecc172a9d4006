#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings.h"
#include "kernels/encode_blocks.h"

namespace penstock {
namespace {

using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void encode(const std::string& name, const Values& values, const std::optional<Values>& importance,
            MutableBytes out) {
  const WeightFormat format = parse_block_format(name);
  const EncodedBlock block = encoded_block(format);
  expect(block.columns > 0, "no kernel rounds to blocks of this format");
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

}  // namespace

void bind_encode(nb::module_& m) {
  using namespace nb::literals;
  m.def("encode_blocks", &encode, "format"_a, exact("values"), exact("importance").none(),
        exact("out"));
}

}  // namespace penstock
