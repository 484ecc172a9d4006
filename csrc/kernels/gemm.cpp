#include "gemm.h"

#include <cstring>

#include "gemm_cuts.h"

namespace penstock {
namespace {

// Columns `rows` ([n, k], n <= 16) of one panel. Word: what a column has in one row of 16 in the
// panel (a k, or for bf16 a pair). `depth` words are stored, zeros beyond k.
template <class Word>
void pack_columns(const std::byte* rows, int64_t n, int64_t k_bytes, int64_t depth, int lane,
                  std::byte* panel) {
  // By 16 words: source and destination lines of a square stay in L1.
  constexpr int64_t kSquare = 16;
  Word* out = reinterpret_cast<Word*>(panel);
  const int64_t whole = k_bytes / int64_t(sizeof(Word));
  for (int64_t first = 0; first < depth; first += kSquare) {
    const int64_t last = std::min(first + kSquare, depth);
    for (int64_t c = 0; c < n; ++c) {
      const std::byte* in = rows + c * k_bytes;
      for (int64_t w = first; w < last; ++w) {
        Word word{};
        if (w < whole)
          std::memcpy(&word, in + w * sizeof(Word), sizeof(Word));
        else if (w == whole)  // half a pair, or nothing
          std::memcpy(&word, in + w * sizeof(Word), size_t(k_bytes) % sizeof(Word));
        out[w * kPanelColumns + lane + c] = word;
      }
    }
  }
}

template <class Word>
void zero_columns(int64_t depth, int lane, std::byte* panel) {
  Word* out = reinterpret_cast<Word*>(panel);
  for (int64_t w = 0; w < depth; ++w)
    for (int c = lane; c < kPanelColumns; ++c) out[w * kPanelColumns + c] = Word{};
}

template <class Word>
void pack_panels(const std::byte* rows, int64_t n, int64_t k_bytes, int64_t depth, PartPlace place,
                 std::byte* panels, const Worker& worker) {
  const int64_t panel_bytes = depth * kPanelColumns * int64_t(sizeof(Word));
  const int64_t count = ceil_div(place.lane + n, kPanelColumns);
  const Range own = even_share(count, worker.id, worker.count);
  for (int64_t i = own.first; i < own.last; ++i) {
    std::byte* panel = panels + (place.panel + i * place.stride) * panel_bytes;
    const int64_t first = std::max<int64_t>(0, i * kPanelColumns - place.lane);
    const int64_t last = std::min(n, (i + 1) * kPanelColumns - place.lane);
    const int lane = i == 0 ? place.lane : 0;
    pack_columns<Word>(rows + first * k_bytes, last - first, k_bytes, depth, lane, panel);
    if (place.pads_end && i + 1 == count)
      zero_columns<Word>(depth, lane + int(last - first), panel);
  }
}

}  // namespace

size_t packed_bytes(Elem elem, int64_t n, int64_t k, bool gated) {
  return size_t(ceil_div(n, kPanelColumns) * kPanelColumns * stored_depth(elem, k)) *
         elem_bytes(elem) * (gated ? 2 : 1);
}

void pack_part(Elem elem, const void* rows, int64_t n, int64_t k, PartPlace place,
               std::byte* panels, const Worker& worker) {
  const auto* in = static_cast<const std::byte*>(rows);
  const int64_t k_bytes = k * int64_t(elem_bytes(elem));
  const int64_t depth = stored_depth(elem, k);
  if (elem == Elem::f16)
    pack_panels<uint16_t>(in, n, k_bytes, depth, place, panels, worker);
  else
    pack_panels<uint32_t>(in, n, k_bytes, elem == Elem::bf16 ? depth / 2 : depth, place, panels,
                          worker);
}

}  // namespace penstock
