#include "bindings.h"
#include "checksum.h"

namespace penstock {

void bind_checksum(nb::module_& m) {
  using namespace nb::literals;
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  m.def(
      "crc32c", [](const Bytes& bytes, uint32_t before) { return crc32c(span_of(bytes), before); },
      exact("bytes"), "before"_a = 0, unlocked);
  m.def(
      "crc32c_by_tables",
      [](const Bytes& bytes, uint32_t before) { return crc32c_by_tables(span_of(bytes), before); },
      exact("bytes"), "before"_a = 0, unlocked);
}

}  // namespace penstock
