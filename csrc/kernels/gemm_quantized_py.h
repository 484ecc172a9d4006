// Products with quantized weights as a Python function over NumPy arrays, for tests.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock {

void bind_quantized_linear(nanobind::module_& m);

}  // namespace penstock
