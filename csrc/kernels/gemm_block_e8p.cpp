// The tables of lattice points, made of their definition (quant/lattice.py) by the compiler.
#include "gemm_block_shuffled.h"

#include <algorithm>
#include <cstddef>

namespace penstock {
namespace {

using Vector = std::array<int, 8>;

// Four digits of a number in front of `end`, of so many values each, the least being `least` and the
// next `step` more: as the number counts up, vectors come in the order of their components.
constexpr void put_digits(int number, int values, int least, int step, int end, Vector& to) {
  for (int i = end - 1; i >= end - 4; --i, number /= values)
    to[size_t(i)] = least + step * (number % values);
}

constexpr int squared_length(const Vector& v) {
  int sum = 0;
  for (int each : v) sum += each * each;
  return sum;
}

constexpr int sum_of(const Vector& v) {
  int sum = 0;
  for (int each : v) sum += each;
  return sum;
}

// Of magnitudes three of which are a half, the sum of these three's places modulo 8, and then the
// places: what the longest ones of E8P are ordered by, to be chosen.
constexpr int order_of_long(const Vector& halves) {
  int sum = 0, places = 0;
  for (int i = 0; i < 8; ++i)
    if (halves[size_t(i)] == 1) sum += i, places = 8 * places + i;
  return sum % 8 * 512 + places;
}

// Twice the magnitudes: odd numbers, all of a squared length up to 40, and 29 of 48.
constexpr PointTable e8p_magnitudes() {
  std::array<Vector, 512> found{};
  size_t count = 0;
  std::array<int, 56> orders{};
  size_t long_ones = 0;
  for (int head = 0; head < 81; ++head) {
    Vector v{};
    put_digits(head, 3, 1, 2, 4, v);
    if (squared_length(v) > 44) continue;
    for (int tail = 0; tail < 81; ++tail) {
      put_digits(tail, 3, 1, 2, 8, v);
      const int length = squared_length(v);
      const bool is_long = length == 48 && *std::ranges::max_element(v) == 3;
      if (is_long) orders[long_ones++] = order_of_long(v);
      if (length <= 40 || is_long) found[count++] = v;
    }
  }
  std::ranges::sort(orders);
  PointTable table{};
  size_t at = 0;
  for (int odd = 0; odd < 2; ++odd)
    for (int length = 8; length <= 48; length += 8)
      for (size_t i = 0; i < count; ++i) {
        const Vector& v = found[i];
        if (squared_length(v) != length || sum_of(v) / 2 % 2 != odd) continue;
        if (length == 48 && order_of_long(v) > orders[28]) continue;
        for (size_t k = 0; k < 8; ++k) table[at][k] = uint8_t(2 * v[k]);
        if (odd) table[at][7] = uint8_t(-2 * v[7]);
        ++at;
      }
  return table;
}

constexpr PointTable small_e8_codes() {
  PointTable table{};
  size_t at = 0;
  const auto put = [&](const Vector& doubled) {
    for (size_t i = 0; i < 8; ++i) table[at][i] = uint8_t(doubled[i] + kSmallE8Offset);
    ++at;
  };
  put({});
  // Of squared length 2: whole numbers, or halves of odd ones, whose sum is even; twice that here.
  for (int head = 0; head < 625; ++head) {
    Vector v{};
    put_digits(head, 5, -2, 1, 4, v);
    const auto alike = [&](int each) { return (each - v[0]) % 2 == 0; };
    if (squared_length(v) > 8 || !std::all_of(v.begin(), v.begin() + 4, alike)) continue;
    for (int tail = 0; tail < 625; ++tail) {
      put_digits(tail, 5, -2, 1, 8, v);
      if (squared_length(v) == 8 && sum_of(v) % 4 == 0 && std::ranges::all_of(v, alike)) put(v);
    }
  }
  for (int i = 0; i < 15; ++i) {
    Vector axis{};
    axis[size_t(i < 8 ? i : 14 - i)] = i < 8 ? -4 : 4;
    put(axis);
  }
  return table;
}

}  // namespace

alignas(64) constinit const PointTable kE8pMagnitudes = e8p_magnitudes();
alignas(64) constinit const PointTable kSmallE8Codes = small_e8_codes();

#if defined(__AVX512VNNI__)

namespace {

constexpr size_t first_odd() {
  const PointTable table = e8p_magnitudes();
  size_t at = 0;
  while (table[at][7] < 128) ++at;
  return at;
}

constexpr std::array<ByteTable, 2> e8p_chosen() {
  const PointTable table = e8p_magnitudes();
  std::array<ByteTable, 2> planes{};
  for (size_t code = 0; code < 256; ++code)
    for (size_t k = 0; k < 8; ++k) {
      const int size = table[code][k] < 128 ? table[code][k] : 256 - table[code][k];  // 2, 6 or 10
      planes[k / 4][code] |= uint8_t(size / 4 << 2 * (k % 4));
    }
  return planes;
}

// The lower of the two bits of each k, of eight signs of which seven are given.
constexpr std::array<std::array<uint8_t, 128>, 2> e8p_signs() {
  std::array<std::array<uint8_t, 128>, 2> planes{};
  for (unsigned given = 0; given < 128; ++given) {
    const unsigned signs = given | unsigned(std::popcount(given) & 1) << 7;
    for (unsigned k = 0; k < 8; ++k) planes[k / 4][given] |= uint8_t((signs >> k & 1) << 2 * (k % 4));
  }
  return planes;
}

constexpr std::array<ByteTable, 4> small_e8_pairs() {
  const PointTable table = small_e8_codes();
  std::array<ByteTable, 4> planes{};
  for (size_t code = 0; code < 256; ++code)
    for (size_t k = 0; k < 8; ++k) planes[k / 2][code] |= uint8_t(table[code][k] << 4 * (k % 2));
  return planes;
}

}  // namespace

constinit const uint8_t kE8pFirstOdd = uint8_t(first_odd());
alignas(64) constinit const std::array<ByteTable, 2> kE8pChosen = e8p_chosen();
alignas(64) constinit const std::array<std::array<uint8_t, 128>, 2> kE8pSigns = e8p_signs();
alignas(64) constinit const std::array<ByteTable, 4> kSmallE8Pairs = small_e8_pairs();

#endif

}  // namespace penstock
