// Products of weights in blocks with x rounded to int8.
#include "gemm_block_path.h"

namespace penstock {
template struct Product<FilePath<ByteOperand>>;
}  // namespace penstock
