// Weights rounded to 8 or 4 bits while they are loaded.
#pragma once

#include "../types.h"

namespace penstock {

// As quant/tensor.py rounds, bit by bit: rows [n, k] of `elem`, which lie at any address, become
// codes [n, k], scales [n, groups] and, unless null, zeros [n, groups]; `group` columns share a scale,
// 0: the whole row. A group with a value that is not finite has a scale that is not, and codes without
// meaning. Called by each of worker.count threads, which share the rows.
void round_weights(Elem elem, const std::byte* rows, int64_t n, int64_t k, int bits, int64_t group,
                   int8_t* codes, float* scales, int8_t* zeros, const Worker& worker);

}  // namespace penstock
