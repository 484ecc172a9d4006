// Products of groups and of the 8-bit grid where weights alone are quantized: x in bfloat16.
#include "gemm_block_path.h"

namespace penstock {
#if defined(PENSTOCK_BF16_DOTS) && !defined(__AMX_BF16__)
template struct Product<PointPath<PairOperand>>;
#endif
}  // namespace penstock
