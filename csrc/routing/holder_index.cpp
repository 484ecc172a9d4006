#include "holder_index.h"

#include <algorithm>

namespace penstock {

void Overlaps::sort() {
  const std::span<Group> all = groups();
  std::sort(all.begin(), all.end(),
            [](const Group& left, const Group& right) { return left.held > right.held; });
  size_t kept = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (kept > 0 && all[kept - 1].held == all[i].held)
      all[kept - 1].replicas.add(all[i].replicas);
    else if (kept++ != i)
      std::swap(all[kept - 1], all[i]);
  }
  size_ = kept;
}

void HolderIndex::holders(const BlockKey& key, ReplicaSet& found) const {
  const EntryId id = entries_.find(key, entries_.hash(key));
  if (id == kNoEntry)
    found.clear();
  else
    holdings_.all(entries_[id], found);
}

void HolderIndex::prefixes(const Chain& chain, const ReplicaSet& among, Overlaps& found) {
  left_ = among;
  size_t count = left_.count();
  int64_t blocks = 0;
  if (count == 0) return;
  entries_.each(chain.keys, [&](const BlockKey& key, uint32_t hash) {
    const EntryId id = entries_.find(key, hash);
    if (id == kNoEntry || !holdings_.cover(entries_[id], left_, count)) {
      Overlaps::Group& group = found.add(blocks * chain.block);
      group.replicas = left_;
      if (id == kNoEntry) {
        count = 0;
      } else {
        holdings_.among(entries_[id], left_, here_);
        group.replicas.remove(here_);
        std::swap(left_, here_);
        count = left_.count();
      }
    }
    ++blocks;
    return count != 0;
  });
  if (count != 0) found.add(blocks * chain.block).replicas = left_;
}

}  // namespace penstock
