// Blocks of files, read one by one: what packing and checks see of them.
#pragma once

#include "gemm_block_format.h"

namespace penstock {

// Columns of a block in a file, and its bytes.
struct BlockSize {
  int64_t columns, bytes;
};
BlockSize block_size(WeightFormat format);

FileBlock read_block(WeightFormat format, const std::byte* block);

}  // namespace penstock
