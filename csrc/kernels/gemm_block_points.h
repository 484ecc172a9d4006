// What the codes of blocks stand for: their points, which the scale of a group multiplies.
//
// A Points says
//   kWhole    whether points are whole numbers, so that rows of x rounded to int8 meet them exactly
//   kFloat8   whether codes are floats of 8 bits (E4M3), which arithmetic decodes
// and where points are whole
//   kOffset   of unsigned points from points
//   kTable    with kTabled: the unsigned points of codes; else they are the codes
//   kWide     unsigned points exceed 63
// or else
//   point(code)  a float32
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace penstock {

template <int Offset, bool Wide>
struct PlainPoints {
  static constexpr bool kWhole = true, kFloat8 = false;
  static constexpr int kOffset = Offset;
  static constexpr bool kWide = Wide, kTabled = false;
  static constexpr std::array<uint8_t, 16> kTable{};
};

// The code book of IQ4.
struct Iq4Points {
  static constexpr bool kWhole = true, kFloat8 = false;
  static constexpr int kOffset = 128;
  static constexpr bool kWide = true, kTabled = true;
  static constexpr std::array<uint8_t, 16> kTable{1,   24,  45,  63,  79,  93,  106, 118,
                                                  129, 141, 153, 166, 181, 197, 217, 241};
};
// Numbers of E2M1, twice.
struct E2m1Points {
  static constexpr bool kWhole = true, kFloat8 = false;
  static constexpr int kOffset = 12;
  static constexpr bool kWide = false, kTabled = true;
  static constexpr std::array<uint8_t, 16> kTable{12, 13, 14, 15, 16, 18, 20, 24,
                                                  12, 11, 10, 9,  8,  6,  4,  0};
};

// Points that are no whole numbers have no offset, whatever reads one.
struct FractionPoints {
  static constexpr bool kWhole = false;
  static constexpr int kOffset = 0;
  static constexpr bool kWide = false, kTabled = false;
};

// E4M3: a sign, four bits of exponent, three of mantissa; the codes of NaN are not multiplied.
struct E4m3Points : FractionPoints {
  static constexpr bool kFloat8 = true;
  static constexpr float point(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    float value = float(exponent ? 8 + mantissa : mantissa) * 0x1p-10f;
    for (int i = 0; i < (exponent ? exponent : 1); ++i) value *= 2;
    return code & 128 ? -value : value;
  }
};

// bitsandbytes' tables of 4 bits: quantiles of a normal distribution, and floats.
struct Nf4Points : FractionPoints {
  static constexpr bool kFloat8 = false;
  static constexpr float point(int code) {
    constexpr std::array<float, 16> all{
        -1.0f,                -0.6961928009986877f,  -0.5250730514526367f, -0.39491748809814453f,
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
        0.07958029955625534f,  0.16093020141124725f,  0.24611230194568634f, 0.33791524171829224f,
        0.44070982933044434f,  0.5626170039176941f,   0.7229568362236023f,  1.0f};
    return all[size_t(code & 15)];
  }
};
struct Fp4Points : FractionPoints {
  static constexpr bool kFloat8 = false;
  static constexpr float point(int code) {
    constexpr std::array<float, 8> all{0.0f,         0.0625f / 12, 8.0f / 12, 1.0f,
                                       4.0f / 12, 6.0f / 12,    2.0f / 12, 3.0f / 12};
    return code & 8 ? -all[size_t(code & 7)] : all[size_t(code & 7)];
  }
};

// The point of a code: an int where points are whole, else a float.
template <class Format>
constexpr auto point_of(int code) {
  if constexpr (Format::kWhole)
    return (Format::kTabled ? int(Format::kTable[size_t(code & 15)]) : code) - Format::kOffset;
  else
    return Format::point(code);
}

// Rounded to bfloat16, which holds whole ones and E4M3's exactly.
template <class Format>
constexpr uint16_t narrow_point(int code) {
  const uint32_t bits = std::bit_cast<uint32_t>(float(point_of<Format>(code)));
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// E4M3 in bfloat16 where sign and exponent are 0, by the last five bits.
alignas(64) inline constexpr std::array<uint16_t, 32> kSmallFloat8 = [] {
  std::array<uint16_t, 32> all{};
  for (int i = 0; i < 32; ++i) all[size_t(i)] = narrow_point<E4m3Points>(i & 7);
  return all;
}();

}  // namespace penstock
