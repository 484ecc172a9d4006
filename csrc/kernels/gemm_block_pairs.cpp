// Products of weights in blocks with x in bfloat16.
#include "gemm_block_path.h"

namespace penstock {
#if defined(__AVX512BF16__)
template struct Product<FilePath<PairOperand>>;
#endif
}  // namespace penstock
