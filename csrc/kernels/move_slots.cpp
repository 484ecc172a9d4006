#include "move_slots.h"

namespace penstock {

void move_slots(const KvLayer& kv, std::span<const int32_t> moves) {
  for (size_t m = 0; m + 1 < moves.size(); m += 2) {
    const int from = moves[m], to = moves[m + 1];
    if (from == to) continue;
    for (int head = 0; head < kv.kv_heads; ++head)
      copy_token(kv, kv.keys(from / kBlockSize, head), from % kBlockSize,
                 kv.keys(to / kBlockSize, head), to % kBlockSize);
  }
}

}  // namespace penstock
