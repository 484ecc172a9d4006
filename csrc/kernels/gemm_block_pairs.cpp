// Products of weights in blocks with x in bfloat16.
#include "gemm_block_path.h"

namespace penstock {
#if defined(PENSTOCK_BF16_DOTS)
template struct Product<FilePath<PairOperand>>;
#endif
}  // namespace penstock
