// What a check says, and how many failed: for kernels_check.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>

namespace penstock::check {

inline int failures = 0;

inline void expect(bool holds, const std::string& what) {
  if (holds || ++failures > 30) return;
  std::printf("FAIL %s\n", what.c_str());
}

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

inline std::string text(double x) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", x);
  return buffer;
}

}  // namespace penstock::check
