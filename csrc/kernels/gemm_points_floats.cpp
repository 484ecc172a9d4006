// Products of groups and of the 8-bit grid where weights alone are quantized: x in float32.
#include "gemm_block_path.h"

namespace penstock {
template struct Product<PointPath<FloatOperand>>;
}  // namespace penstock
