// Products of weights in codebooks of rows with x in float32.
#include "gemm_codebook_path.h"

namespace penstock {
template struct Product<CodebookPath<FloatCodebook>, CodebookPanels>;
}  // namespace penstock
