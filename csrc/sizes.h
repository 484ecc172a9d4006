// Sizes computed from numbers that a caller gave: what does not fit is refused, not wrapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "refuse.h"

namespace penstock {

// The product of numbers that are not negative. Throws std::invalid_argument, naming `what`, where
// one is, or where the product exceeds 2^62: half of what an int64_t holds, so that what is added
// to it later needs no check of its own.
inline int64_t checked_product(const char* what, std::initializer_list<int64_t> factors) {
  constexpr int64_t kMost = int64_t(1) << 62;
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0) refuse(std::string(what) + " has a negative size");
    if (__builtin_mul_overflow(product, factor, &product) || product > kMost)
      refuse(std::string(what) + " is larger than any memory");
  }
  return product;
}

// Whether [first, first + count) lies in [0, size). None of the three may overflow the others.
constexpr bool lies_within(int64_t first, int64_t count, int64_t size) {
  return first >= 0 && count >= 0 && first <= size && count <= size - first;
}

}  // namespace penstock
