// Weights of blocks in bfloat16 for BFDOT and BFMMLA, as for VDPBF16PS: of each four k the pairs are the
// first and third, the second and fourth. Included by gemm_block_operands.h.
#pragma once

namespace penstock {

struct PairOperand {
  using Sum = f32x16;
  static constexpr bool kRounded = false, kLoose = false, kSquares = true;
  static constexpr int64_t kElement = 2;
  static constexpr int kQuads = 1;
  static constexpr int64_t kStepBytes = 2 * kLineBytes;

  struct Weights {
    Quad quads[2];  // of pairs
    static PENSTOCK_INLINE Weights load(const std::byte* from) {
      return {{Quad::load(from), Quad::load(from + kLineBytes)}};
    }
    PENSTOCK_INLINE void store(std::byte* to) const {
      quads[0].store(to);
      quads[1].store(to + kLineBytes);
    }
  };

  template <class Format>
  static PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) {
    if constexpr (Format::kFloat8) {
      return joined([&](int i) __attribute__((always_inline)) { return codes[0].float8(i); });
    } else if constexpr (Format::kBits == 8) {
      const Quad::Less less(f32x16::broadcast(float(Format::kOffset)));
      return joined([&](int i) __attribute__((always_inline)) { return codes[0].number(i, less); });
    } else {
      static constexpr Table<1 << std::max(Format::kBits, 4)> kPoints(
          [](int code) { return narrow_point<Format>(code & ((1 << Format::kBits) - 1)); });
      return kPoints.look_up(codes[0]);
    }
  }
  template <class Format>
  struct Shift {
    Quad::Less less;  // of 8 bits
    Quad zeros;       // in each of a column's bytes
    Shift() = default;
    PENSTOCK_INLINE explicit Shift(i32x16 of) {
      if constexpr (Format::kBits == 8)
        less = Quad::Less(of.to_float());
      else
        zeros = Quad::each([&](int c) {
          return vreinterpretq_u8_s32(vmulq_n_s32(of.v[c], 0x01010101));
        });
    }
    // Differences of four bits have five, with a sign.
    PENSTOCK_INLINE Weights decode(const Quad (&codes)[kQuads]) const {
      if constexpr (Format::kBits == 8) {
        return joined(
            [&](int i) __attribute__((always_inline)) { return codes[0].number(i, less); });
      } else {
        static constexpr Table<32> kPoints([](int code) {
          return uint16_t(std::bit_cast<uint32_t>(float(code < 16 ? code : code - 32)) >> 16);
        });
        const Quad apart = Quad::each([&](int c) { return vsubq_u8(codes[0].v[c], zeros.v[c]); });
        return kPoints.look_up(apart.masked(31));
      }
    }
  };
  static PENSTOCK_INLINE Sum zero() { return f32x16::zero(); }
  template <bool>
  static PENSTOCK_INLINE void add(Sum& sum, const Weights& w, const std::byte* x) {
    const bfloat16x4_t k = vreinterpret_bf16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(x)));
    for (int c = 0; c < 4; ++c) {
      sum.v[c] = vbfdotq_lane_f32(sum.v[c], vreinterpretq_bf16_u8(w.quads[0].v[c]), k, 0);
      sum.v[c] = vbfdotq_lane_f32(sum.v[c], vreinterpretq_bf16_u8(w.quads[1].v[c]), k, 1);
    }
  }

 private:
  // bfloat16 by code: low bytes and high ones, which TBL reads by 16, 32 or 64.
  template <int Size>
  struct Table {
    uint8_t low[Size], high[Size];

    template <class At>
    consteval explicit Table(At at) : low{}, high{} {
      for (int i = 0; i < Size; ++i) low[i] = uint8_t(at(i)), high[i] = uint8_t(at(i) >> 8);
    }
    PENSTOCK_INLINE Weights look_up(const Quad& codes) const {
      Weights w;
      for (int c = 0; c < 4; ++c) {
        const uint8x16_t first = found(low, codes.v[c]), second = found(high, codes.v[c]);
        w.quads[0].v[c] = vtrn1q_u8(first, second);
        w.quads[1].v[c] = vtrn2q_u8(first, second);
      }
      return w;
    }

   private:
    static PENSTOCK_INLINE uint8x16_t found(const uint8_t* table, uint8x16_t at) {
      if constexpr (Size == 16) return vqtbl1q_u8(vld1q_u8(table), at);
      else if constexpr (Size == 32) return vqtbl2q_u8(vld1q_u8_x2(table), at);
      else return vqtbl4q_u8(vld1q_u8_x4(table), at);
    }
  };

  // Of floats whose lower halves are zero, by byte of a column.
  template <class At>
  static PENSTOCK_INLINE Weights joined(At at) {
    const auto join = [](f32x16 low, f32x16 high) __attribute__((always_inline)) {
      return Quad::each([&](int c) {
        return vreinterpretq_u8_u32(vsriq_n_u32(vreinterpretq_u32_f32(high.v[c]),
                                                vreinterpretq_u32_f32(low.v[c]), 16));
      });
    };
    return {{join(at(0), at(2)), join(at(1), at(3))}};
  }
};

}  // namespace penstock
