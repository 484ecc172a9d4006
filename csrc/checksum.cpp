#include "checksum.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace penstock {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

using Table = std::array<uint32_t, 256>;

// Tables for eight bytes a round: [j][b] is what byte b becomes when j zero bytes follow it.
constexpr std::array<Table, 8> byte_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t j = 1; j < 8; ++j)
    for (size_t b = 0; b < 256; ++b)
      tables[j][b] = tables[j - 1][b] >> 8 ^ tables[0][tables[j - 1][b] & 0xff];
  return tables;
}

constexpr std::array<Table, 8> kBytes = byte_tables();

uint64_t load_word(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

#if defined(__x86_64__)

// The instruction takes three cycles and one starts each cycle: three streams hide the wait. They
// are one block's thirds, joined by moving a checksum past the bytes that follow it, which is linear
// over bits and so a table lookup for each of its four bytes.
constexpr size_t kStream = 4096;

// A linear map of 32 bits, as the images of each bit.
using Matrix = std::array<uint32_t, 32>;

constexpr uint32_t transformed(const Matrix& m, uint32_t bits) {
  uint32_t sum = 0;
  for (size_t i = 0; bits; ++i, bits >>= 1)
    if (bits & 1) sum ^= m[i];
  return sum;
}

// What `bytes` zero bytes, a power of two, do to a checksum.
constexpr std::array<Table, 4> zeros_tables(size_t bytes) {
  Matrix m{};
  m[0] = kPolynomial;  // one zero bit: shift right, subtract the polynomial
  for (size_t i = 1; i < 32; ++i) m[i] = uint32_t(1) << (i - 1);
  for (size_t bits = 1; bits < 8 * bytes; bits *= 2) {
    Matrix squared{};
    for (size_t i = 0; i < 32; ++i) squared[i] = transformed(m, m[i]);
    m = squared;
  }
  std::array<Table, 4> tables{};
  for (size_t j = 0; j < 4; ++j)
    for (uint32_t b = 0; b < 256; ++b) tables[j][b] = transformed(m, b << (8 * j));
  return tables;
}

constexpr std::array<Table, 4> kPastStream = zeros_tables(kStream);

uint64_t past_stream(uint64_t crc) {
  return kPastStream[0][crc & 0xff] ^ kPastStream[1][crc >> 8 & 0xff] ^
         kPastStream[2][crc >> 16 & 0xff] ^ kPastStream[3][crc >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(const std::byte* p, size_t count,
                                                          uint32_t before) {
  uint64_t crc = ~before;
  for (; count >= 3 * kStream; count -= 3 * kStream, p += 3 * kStream) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      crc = _mm_crc32_u64(crc, load_word(p + i));
      second = _mm_crc32_u64(second, load_word(p + kStream + i));
      third = _mm_crc32_u64(third, load_word(p + 2 * kStream + i));
    }
    crc = past_stream(past_stream(crc) ^ second) ^ third;
  }
  for (; count >= 8; count -= 8, p += 8) crc = _mm_crc32_u64(crc, load_word(p));
  for (; count > 0; --count, ++p) crc = _mm_crc32_u8(uint32_t(crc), uint8_t(*p));
  return ~uint32_t(crc);
}

#endif

}  // namespace

uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before) {
  const std::byte* p = bytes.data();
  size_t count = bytes.size();
  uint32_t crc = ~before;
  for (; count >= 8; count -= 8, p += 8) {
    const uint64_t word = load_word(p) ^ crc;
    crc = 0;
    for (size_t j = 0; j < 8; ++j) crc ^= kBytes[7 - j][word >> (8 * j) & 0xff];
  }
  for (; count > 0; --count, ++p) crc = crc >> 8 ^ kBytes[0][(crc ^ uint8_t(*p)) & 0xff];
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2"))
    return by_instruction(bytes.data(), bytes.size(), before);
#endif
  return crc32c_by_tables(bytes, before);
}

}  // namespace penstock
