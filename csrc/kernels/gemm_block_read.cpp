#include "gemm_block_read.h"

namespace penstock {
namespace {

uint8_t byte_at(const std::byte* from, int64_t i) { return uint8_t(from[i]); }
f16 half_at(const std::byte* from, int64_t i) {
  f16 value;
  std::memcpy(&value, from + i, sizeof(value));
  return value;
}

// Nibbles of 2 * count codes: the low ones are the first half's.
void read_nibbles(const std::byte* from, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = byte_at(from, i) & 15;
    codes[count + i] = byte_at(from, i) >> 4;
  }
}

// 32 bits, one for each code.
void read_fifth_bits(const std::byte* from, uint8_t* codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] = uint8_t(codes[i] | (byte_at(from, i / 8) >> i % 8 & 1) << 4);
}

void read_q8_0(const std::byte* from, FileBlock& to) {
  to.scale[0] = half_at(from, 0);
  for (int i = 0; i < 32; ++i) to.codes[size_t(i)] = byte_at(from, 2 + i) ^ 0x80;
}

// Scale, perhaps a least value, perhaps fifth bits, nibbles.
void read_simple(const std::byte* from, bool least, bool fifth, FileBlock& to) {
  to.scale[0] = half_at(from, 0);
  from += 2;
  if (least) {
    to.least[0] = half_at(from, 0);
    from += 2;
  }
  read_nibbles(from + (fifth ? 4 : 0), 16, to.codes.data());
  if (fifth) read_fifth_bits(from, to.codes.data());
}

void read_mxfp4(const std::byte* from, FileBlock& to) {
  to.exponent = byte_at(from, 0);
  read_nibbles(from + 1, 16, to.codes.data());
}

// Scales of E4M3 without a sign, halved; 127 is zero.
void read_nvfp4(const std::byte* from, FileBlock& to) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t stored = byte_at(from, i);
    const int exponent = stored >> 3 & 15, mantissa = stored & 7;
    const float value = exponent ? std::ldexp(float(8 + mantissa), exponent - 11)
                                 : std::ldexp(float(mantissa), -10);
    to.scale[i] = to_f16(stored == 127 ? 0.0f : value);
    read_nibbles(from + 4 + 8 * i, 8, to.codes.data() + 16 * i);
  }
}

// Of Q2_K and Q3_K: byte i of each half of 64 codes' bits has them for i, 32 + i, 64 + i, 96 + i.
void read_two_bits(const std::byte* from, FileBlock& to) {
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 32; ++i)
        to.codes[size_t(128 * half + 32 * j + i)] = byte_at(from, 32 * half + i) >> 2 * j & 3;
}

void read_q2_k(const std::byte* from, FileBlock& to) {
  for (int g = 0; g < 16; ++g) {
    to.factors[g] = byte_at(from, g) & 15;
    to.leasts[g] = byte_at(from, g) >> 4;
  }
  read_two_bits(from + 16, to);
  to.scale[0] = half_at(from, 80);
  to.least[0] = half_at(from, 82);
}

void read_q3_k(const std::byte* from, FileBlock& to) {
  read_two_bits(from + 32, to);
  for (int k = 0; k < 256; ++k) {
    const int bit = byte_at(from, k % 32) >> k / 32 & 1;
    to.codes[size_t(k)] = uint8_t(to.codes[size_t(k)] | bit << 2);
  }
  // Four low bits of 16 factors in eight bytes, then two high ones in four.
  for (int g = 0; g < 16; ++g) {
    const int low = byte_at(from, 96 + g % 8) >> g / 8 * 4 & 15;
    const int high = byte_at(from, 104 + g % 4) >> g / 4 * 2 & 3;
    to.factors[g] = uint8_t(low | high << 4);
  }
  to.scale[0] = half_at(from, 108);
}

// The head of Q4_K and Q5_K: 6 bits for each of 8 factors and least values.
void read_factors(const std::byte* from, FileBlock& to) {
  to.scale[0] = half_at(from, 0);
  to.least[0] = half_at(from, 2);
  from += 4;
  for (int g = 0; g < 4; ++g) {
    to.factors[g] = byte_at(from, g) & 63;
    to.leasts[g] = byte_at(from, 4 + g) & 63;
    to.factors[4 + g] = uint8_t((byte_at(from, 8 + g) & 15) | byte_at(from, g) >> 6 << 4);
    to.leasts[4 + g] = uint8_t(byte_at(from, 8 + g) >> 4 | byte_at(from, 4 + g) >> 6 << 4);
  }
}

void read_q4_k(const std::byte* from, FileBlock& to) {
  read_factors(from, to);
  for (int i = 0; i < 4; ++i) read_nibbles(from + 16 + 32 * i, 32, to.codes.data() + 64 * i);
}

void read_q5_k(const std::byte* from, FileBlock& to) {
  read_factors(from, to);
  for (int i = 0; i < 4; ++i) read_nibbles(from + 48 + 32 * i, 32, to.codes.data() + 64 * i);
  for (int k = 0; k < 256; ++k) {
    const int bit = byte_at(from, 16 + k % 32) >> k / 32 & 1;
    to.codes[size_t(k)] = uint8_t(to.codes[size_t(k)] | bit << 4);
  }
}

void read_q6_k(const std::byte* from, FileBlock& to) {
  for (int half = 0; half < 2; ++half) {
    uint8_t* const codes = to.codes.data() + 128 * half;
    read_nibbles(from + 64 * half, 64, codes);
    for (int k = 0; k < 128; ++k) {
      const int bits = byte_at(from, 128 + 32 * half + k % 32) >> k / 32 * 2 & 3;
      codes[k] = uint8_t(codes[k] | bits << 4);
    }
  }
  for (int g = 0; g < 16; ++g) to.factors[g] = byte_at(from, 192 + g) ^ 0x80;
  to.scale[0] = half_at(from, 208);
}

void read_iq4_xs(const std::byte* from, FileBlock& to) {
  to.scale[0] = half_at(from, 0);
  for (int g = 0; g < 8; ++g) {
    const int low = byte_at(from, 4 + g / 2) >> g % 2 * 4 & 15;
    const int high = byte_at(from, 2 + g / 4) >> g % 4 * 2 & 3;
    to.factors[g] = uint8_t(low | high << 4);
    read_nibbles(from + 8 + 16 * g, 16, to.codes.data() + 32 * g);
  }
}

// A scale in float32, then codes of a byte.
void read_fp8(const std::byte* from, int count, FileBlock& to) {
  std::memcpy(&to.scale32, from, sizeof(to.scale32));
  std::memcpy(to.codes.data(), from + 4, size_t(count));
}

void read_mxfp8(const std::byte* from, FileBlock& to) {
  to.exponent = byte_at(from, 0);
  std::memcpy(to.codes.data(), from + 1, 32);
}

// A scale in float32, then pairs of codes, the first of each in the high bits.
void read_bnb4(const std::byte* from, FileBlock& to) {
  std::memcpy(&to.scale32, from, sizeof(to.scale32));
  for (int i = 0; i < 32; ++i) {
    to.codes[size_t(2 * i)] = byte_at(from, 4 + i) >> 4;
    to.codes[size_t(2 * i + 1)] = byte_at(from, 4 + i) & 15;
  }
}

// The row's scale in float32, those of 16 codes each in E4M3, then pairs of codes, the first of each in
// the low bits. Codes stand for twice their numbers.
void read_nvfp4_scaled(const std::byte* from, FileBlock& to) {
  std::memcpy(&to.scale32, from, sizeof(to.scale32));
  to.scale32 *= 0.5f;
  for (int g = 0; g < 2; ++g) to.factors[g] = byte_at(from, 4 + g);
  for (int i = 0; i < 16; ++i) {
    to.codes[size_t(2 * i)] = byte_at(from, 6 + i) & 15;
    to.codes[size_t(2 * i + 1)] = byte_at(from, 6 + i) >> 4;
  }
}

// Codes of lattice points, so many bytes for 8 k: where the codes of these lie of which the first is.
void read_lattice(const std::byte* from, int each, FileBlock& to) {
  for (int i = 0; i < 4; ++i) std::memcpy(to.codes.data() + 8 * i, from + i * each, size_t(each));
}

}  // namespace

BlockSize block_size(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_1: return {32, 20};
    case WeightFormat::q5_0: return {32, 22};
    case WeightFormat::q5_1: return {32, 24};
    case WeightFormat::q8_0: return {32, 34};
    case WeightFormat::q2_k: return {256, 84};
    case WeightFormat::q3_k: return {256, 110};
    case WeightFormat::q4_k: return {256, 144};
    case WeightFormat::q5_k: return {256, 176};
    case WeightFormat::q6_k: return {256, 210};
    case WeightFormat::iq4_xs: return {256, 136};
    case WeightFormat::mxfp4: return {32, 17};
    case WeightFormat::nvfp4: return {64, 36};
    case WeightFormat::fp8_128: return {128, 132};
    case WeightFormat::fp8_32: return {32, 36};
    case WeightFormat::mxfp8: return {32, 33};
    case WeightFormat::nf4:
    case WeightFormat::fp4: return {64, 36};
    case WeightFormat::nvfp4_scaled: return {32, 22};
    case WeightFormat::e8p: return {32, 8};
    case WeightFormat::small_e8: return {32, 4};
    case WeightFormat::q4_0:
    case WeightFormat::iq4_nl:
    case WeightFormat::int8:
    case WeightFormat::int4: break;
  }
  return {32, 18};
}

FileBlock read_block(WeightFormat format, const std::byte* block) {
  FileBlock to;
  switch (format) {
    case WeightFormat::q4_0:
    case WeightFormat::iq4_nl: read_simple(block, false, false, to); break;
    case WeightFormat::q4_1: read_simple(block, true, false, to); break;
    case WeightFormat::q5_0: read_simple(block, false, true, to); break;
    case WeightFormat::q5_1: read_simple(block, true, true, to); break;
    case WeightFormat::q8_0: read_q8_0(block, to); break;
    case WeightFormat::q2_k: read_q2_k(block, to); break;
    case WeightFormat::q3_k: read_q3_k(block, to); break;
    case WeightFormat::q4_k: read_q4_k(block, to); break;
    case WeightFormat::q5_k: read_q5_k(block, to); break;
    case WeightFormat::q6_k: read_q6_k(block, to); break;
    case WeightFormat::iq4_xs: read_iq4_xs(block, to); break;
    case WeightFormat::mxfp4: read_mxfp4(block, to); break;
    case WeightFormat::nvfp4: read_nvfp4(block, to); break;
    case WeightFormat::fp8_128: read_fp8(block, 128, to); break;
    case WeightFormat::fp8_32: read_fp8(block, 32, to); break;
    case WeightFormat::mxfp8: read_mxfp8(block, to); break;
    case WeightFormat::nf4:
    case WeightFormat::fp4: read_bnb4(block, to); break;
    case WeightFormat::nvfp4_scaled: read_nvfp4_scaled(block, to); break;
    case WeightFormat::e8p: read_lattice(block, 2, to); break;
    case WeightFormat::small_e8: read_lattice(block, 1, to); break;
    case WeightFormat::int8:
    case WeightFormat::int4: break;
  }
  return to;
}

}  // namespace penstock
