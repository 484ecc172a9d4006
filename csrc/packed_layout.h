// How weights lie in memory after packing, as a number.
#pragma once

namespace penstock {

// Engine artifacts keep packed weights as they lie in memory, and are used by builds of the same
// number only. Add one with every change of the bytes that packing writes: element order, padding,
// scales, which constants an op has. tests/artifact/test_layout.py fails where that was forgotten.
constexpr int kPackedLayout = 3;

}  // namespace penstock
