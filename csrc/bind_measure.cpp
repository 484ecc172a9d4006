#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "caches.h"
#include "measure.h"

namespace penstock {

void bind_measure(nb::module_& m) {
  using namespace nb::literals;
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  const auto pair_of = [](Measured m) { return std::pair(m.rate, m.spread); };
  m.def(
      "measure_reading",
      [=](size_t bytes, int threads, double seconds) {
        return pair_of(measure_reading(bytes, threads, seconds));
      },
      "bytes"_a, "threads"_a, "seconds"_a, unlocked);
  const auto arithmetic = [&](const char* name, Measured (*measure)(int, double)) {
    m.def(
        name, [=](int threads, double seconds) { return pair_of(measure(threads, seconds)); },
        "threads"_a, "seconds"_a, unlocked);
  };
  arithmetic("measure_f32", &measure_f32);
  arithmetic("measure_bf16", &measure_bf16);
  arithmetic("measure_int8", &measure_int8);
  m.def("second_level_cache", &second_level_cache);
  m.def(
      "second_level_share",
      [](const std::string& folder, const std::vector<int>& cpus) { return second_level_share(folder, cpus); },
      "folder"_a, "cpus"_a);
}

}  // namespace penstock
