#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(PENSTOCK_MODULE, m) { m.attr("isa") = PENSTOCK_ISA; }
