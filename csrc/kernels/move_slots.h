// One token's keys and values copied between places of the cache.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "../types.h"

namespace penstock {

// Keys are [D/Lanes][32][Lanes] and values [32/Lanes][D][Lanes] of T, as KvLayer lays them out; D
// of each is that of its tile.
template <class T, int Lanes>
inline void copy_token_as(const KvLayer& kv, const std::byte* from, int from_at, std::byte* to,
                          int to_at) {
  int dim = kv.key_tile().padded_dim();
  const auto* keys = reinterpret_cast<const T*>(from) + from_at * Lanes;
  auto* new_keys = reinterpret_cast<T*>(to) + to_at * Lanes;
  for (int d = 0; d < dim * kBlockSize; d += Lanes * kBlockSize)
    std::memcpy(new_keys + d, keys + d, Lanes * sizeof(T));
  dim = kv.value_tile().padded_dim();
  const size_t behind = kv.key_tile().bytes();
  const auto place = [dim](int at) { return at / Lanes * Lanes * dim + at % Lanes; };
  const auto* values = reinterpret_cast<const T*>(from + behind) + place(from_at);
  auto* new_values = reinterpret_cast<T*>(to + behind) + place(to_at);
  for (int d = 0; d < dim * Lanes; d += Lanes) new_values[d] = values[d];
}

// A row of latents, and its scales.
inline void copy_latent(const KvLayer& kv, const std::byte* from, int from_at, std::byte* to,
                        int to_at) {
  const KvTile tile = kv.key_tile();
  const size_t row = size_t(tile.padded_dim()) * elem_bytes(tile.elem);
  std::memcpy(to + size_t(to_at) * row, from + size_t(from_at) * row, row);
  for (size_t at = tile.element_bytes(); at < tile.bytes(); at += 2 * kBlockSize)
    std::memcpy(to + at + 2 * to_at, from + at + 2 * from_at, 2);
}

// Copies one token of one KV head from offset `from_at` of a block to `to_at` of another, or of the
// same. `from` and `to` are KvLayer::keys() of these, values behind keys. Writes nothing else.
inline void copy_token(const KvLayer& kv, const std::byte* from, int from_at, std::byte* to,
                       int to_at) {
  if (kv.latent()) return copy_latent(kv, from, from_at, to, to_at);
  switch (kv.elem) {
    case Elem::bf16:
      return copy_token_as<uint16_t, 2>(kv, from, from_at, to, to_at);
    case Elem::f16:
      return copy_token_as<uint16_t, 1>(kv, from, from_at, to, to_at);
    case Elem::i8:
    case Elem::i4:
    case Elem::k8v4:
    case Elem::e4m3:
      if (kv.elem == Elem::e4m3)
        copy_token_as<uint8_t, 2>(kv, from, from_at, to, to_at);
      else
        copy_token_as<uint8_t, 4>(kv, from, from_at, to, to_at);
      for (size_t scales : {kv.key_tile().element_bytes(),
                            kv.key_tile().bytes() + kv.value_tile().element_bytes()})
        std::memcpy(to + scales + 2 * to_at, from + scales + 2 * from_at, 2);
      return;
    default:
      return copy_token_as<uint32_t, 1>(kv, from, from_at, to, to_at);
  }
}

// Moves tokens of every KV head between slots: pairs (from, to), each seeing what those before it
// wrote. What is left at `from` means nothing.
void move_slots(const KvLayer& kv, std::span<const int32_t> moves);

}  // namespace penstock
