#include "levels.h"

#include <algorithm>
#include <string>

namespace penstock {

void LoadLevels::put(size_t replica, int64_t level) {
  const size_t word = replica / 64;
  if (word >= least_.size()) {
    levels_.resize(64 * (word + 1), kNone);
    least_.resize(word + 1, kNone);
  }
  const int64_t before = levels_[replica];
  levels_[replica] = level;
  if (level <= least_[word]) {
    least_[word] = level;
  } else if (before == least_[word]) {
    const auto first = levels_.begin() + int64_t(64 * word);
    least_[word] = *std::min_element(first, first + 64);
  }
}

void LoadLevels::drop(size_t replica) {
  level(replica);
  put(replica, kNone);
}

int64_t LoadLevels::level(size_t replica) const {
  if (!knows(replica))
    throw UnknownReplica("there is no replica " + std::to_string(replica));
  return levels_[replica];
}

std::optional<int64_t> LoadLevels::lowest() const {
  const auto least = std::min_element(least_.begin(), least_.end());
  return least == least_.end() || *least == kNone ? std::nullopt : std::optional(*least);
}

std::optional<int64_t> LoadLevels::highest() const {
  std::optional<int64_t> highest;
  for (const int64_t level : levels_)
    if (level != kNone && (!highest || level > *highest)) highest = level;
  return highest;
}

int64_t LoadLevels::least(const ReplicaSet& among, ReplicaSet& equal) const {
  const size_t words = std::min(among.width(), least_.size());
  int64_t least = kNone;
  equal.reset(words);
  for (size_t word = 0; word < words; ++word) {
    if (!among.word(word) || least_[word] > least || least_[word] == kNone) continue;
    const int64_t* const levels = &levels_[64 * word];
    int64_t here = kNone;
    each_bit(among.word(word), [&](size_t i) { here = std::min(here, levels[i]); });
    if (here > least || here == kNone) continue;
    if (here < least) {
      least = here;
      std::fill_n(equal.words().begin(), word, 0);
    }
    uint64_t& found = equal.words()[word];
    each_bit(among.word(word), [&](size_t i) { found |= uint64_t{levels[i] == here} << i; });
  }
  if (least == kNone) throw UnknownReplica("no replica of the set is known");
  return least;
}

}  // namespace penstock
