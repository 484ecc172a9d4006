// Products of weights in codebooks of rows with x in bfloat16.
#include "gemm_codebook_path.h"

namespace penstock {
#if defined(__AVX512BF16__)
template struct Product<CodebookPath<PairCodebook>, CodebookPanels>;
#endif
}  // namespace penstock
