// Products of weights in blocks with x in float32.
#include "gemm_block_path.h"

namespace penstock {
template struct Product<FilePath<FloatOperand>>;
}  // namespace penstock
