// Attention and rope_write as Python functions over NumPy arrays, for tests.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock {

void bind_attention(nanobind::module_& m);

}  // namespace penstock
