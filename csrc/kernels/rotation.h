// Rotary position embedding, as kernels are given it.
#pragma once

namespace penstock {

struct Rotation {
  const float* cos;  // [max_positions, dim / 2]
  const float* sin;
  int dim;           // even, 0..head_dim; components of a head from here on are copied
  bool interleaved;  // component 2 i turns with 2 i + 1; else i with i + dim / 2
};

}  // namespace penstock
