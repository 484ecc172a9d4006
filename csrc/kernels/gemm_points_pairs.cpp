// Products of groups and of the 8-bit grid where weights alone are quantized: x in bfloat16.
#include "gemm_block_path.h"

namespace penstock {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
template struct Product<PointPath<PairOperand>>;
#endif
}  // namespace penstock
