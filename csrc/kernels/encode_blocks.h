// Matrices rounded to blocks of published formats: the other direction of gemm_block_format.h.
#pragma once

#include <cstdint>

#include "gemm_block.h"

namespace penstock {

// Whether there is an encoder of `format`.
bool is_encoded(WeightFormat format);

// As quant/encode rounds, bit by bit: blocks of finite values, one behind the other, to
// block_size() bytes each. `importance` has the columns of `per_row` blocks, which repeat, or is
// null. Runs on the calling thread; throws std::invalid_argument for a format that is not encoded.
void encode_blocks(WeightFormat format, const float* values, int64_t blocks,
                   const float* importance, int64_t per_row, uint8_t* out);

}  // namespace penstock
