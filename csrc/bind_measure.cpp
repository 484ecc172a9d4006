#include "bindings.h"
#include "measure.h"

namespace penstock {

void bind_measure(nb::module_& m) {
  using namespace nb::literals;
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  m.def("measure_read_bandwidth", &measure_read_bandwidth, "bytes"_a, "threads"_a, unlocked);
  m.def("measure_bf16_flops", &measure_bf16_flops, "threads"_a, unlocked);
  m.def("measure_int8_ops", &measure_int8_ops, "threads"_a, unlocked);
}

}  // namespace penstock
