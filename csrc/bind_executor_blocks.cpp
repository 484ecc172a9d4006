// Blocks of penstock::Executor's KV cache as bytes in Python.

#include <nanobind/stl/vector.h>

#include "bind_executor.h"
#include "bindings.h"

namespace penstock {

namespace {

using namespace nb::literals;

using Checksums = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_blocks(nb::class_<PyExecutor>& executor) {
  executor
      .def_prop_ro("group_bytes",
                   [](const PyExecutor& self) {
                     std::vector<size_t> sizes;
                     for (int group = 0; group < self.get().groups(); ++group)
                       sizes.push_back(self.get().group_bytes(group));
                     return sizes;
                   })
      .def(
          "read_blocks",
          [](PyExecutor& self, int group, const Ints& blocks, const MutableBytes& out) {
            Executor& native = self.get();
            nb::gil_scoped_release unlocked;
            return native.read_blocks(group, span_of(blocks),
                                      {reinterpret_cast<std::byte*>(out.data()), out.size()});
          },
          "group"_a, exact("blocks"), exact("out"))
      .def(
          "write_blocks",
          [](PyExecutor& self, int group, const Ints& blocks, const Bytes& bytes,
             const Checksums& checksums) {
            Executor& native = self.get();
            nb::gil_scoped_release unlocked;
            return native.write_blocks(group, span_of(blocks), span_of(bytes),
                                       {checksums.data(), checksums.size()});
          },
          "group"_a, exact("blocks"), exact("bytes"), exact("checksums"));
}

}  // namespace penstock
