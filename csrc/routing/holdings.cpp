#include "holdings.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace penstock {

uint32_t HoldingArrays::take(uint32_t size_class) {
  if (const uint32_t array = free_[size_class]; array != kNone) {
    free_[size_class] = (*this)[array]->at;
    return array;
  }
  const uint64_t size = uint64_t{1} << size_class;
  const uint64_t array = (unused_ + size - 1) & ~(size - 1);  // none lies in two chunks
  if (array + size > uint64_t{1} << 32) throw std::length_error("blocks have too many holders");
  if (array >> kChunkClass == chunks_.size())
    chunks_.push_back(std::make_unique_for_overwrite<Holding[]>(size_t{1} << kChunkClass));
  unused_ = array + size;
  return uint32_t(array);
}

void HoldingArrays::give_back(uint32_t array, uint32_t size_class) {
  (*this)[array]->at = free_[size_class];
  free_[size_class] = array;
}

uint32_t HolderSets::take() {
  if (free_.empty()) {
    words_.resize(words_.size() + width_);
    return uint32_t(words_.size() / width_ - 1);
  }
  const uint32_t set = free_.back();
  free_.pop_back();
  std::fill_n((*this)[set], width_, 0);
  return set;
}

void HolderSets::widen(size_t words) {
  if (words <= width_) return;
  const size_t width = std::bit_ceil(words), count = words_.size() / width_;
  std::vector<uint64_t> wider(count * width);
  for (size_t set = 0; set < count; ++set)
    std::copy_n(&words_[set * width_], width_, &wider[set * width]);
  words_ = std::move(wider);
  width_ = width;
}

Holding* Holdings::find(Entry& entry, ReplicaId replica) const {
  if (entry.holders <= 1)
    return entry.holders == 1 && entry.one.replica == replica ? &entry.one : nullptr;
  if (entry.several.set != kNoSet &&
      !(sets_[entry.several.set][replica / 64] & ReplicaSet::bit(replica)))
    return nullptr;
  Holding* const first = arrays_[entry.several.array];
  Holding* const end = first + entry.holders;
  Holding* const found = std::lower_bound(
      first, end, replica, [](const Holding& each, ReplicaId at) { return each.replica < at; });
  return found != end && found->replica == replica ? found : nullptr;
}

Holding& Holdings::add(Entry& entry, ReplicaId replica) {
  const Holding added{.open = 0, .at = 0, .replica = replica, .held = false};
  if (entry.holders == 0) {
    entry.holders = 1;
    return entry.one = added;
  }
  if (entry.holders == 1) {
    const Holding one = entry.one;
    entry.several = {.array = arrays_.take(1), .set = kNoSet, .size_class = 1};
    *arrays_[entry.several.array] = one;
  } else if (entry.holders == 1u << entry.several.size_class) {
    resize(entry, entry.several.size_class + 1);
  }
  Holding* const first = arrays_[entry.several.array];
  Holding* const end = first + entry.holders;
  Holding* const place = std::lower_bound(
      first, end, replica, [](const Holding& each, ReplicaId at) { return each.replica < at; });
  std::copy_backward(place, end, end + 1);
  *place = added;
  ++entry.holders;
  if (entry.several.set != kNoSet) {
    sets_[entry.several.set][replica / 64] |= ReplicaSet::bit(replica);
  } else if (entry.holders > kFew) {
    uint64_t* const set = sets_[entry.several.set = sets_.take()];
    for (const Holding* each = first; each <= end; ++each)
      set[each->replica / 64] |= ReplicaSet::bit(each->replica);
  }
  return *place;
}

void Holdings::remove(Entry& entry, Holding& holding) {
  if (entry.holders == 1) {
    entry.holders = 0;
    return;
  }
  if (entry.several.set != kNoSet)
    sets_[entry.several.set][holding.replica / 64] &= ~ReplicaSet::bit(holding.replica);
  Holding* const first = arrays_[entry.several.array];
  std::copy(&holding + 1, first + entry.holders, &holding);
  --entry.holders;
  // Half as many as would make it grow, so that nobody who comes and goes moves all others each time.
  if (entry.several.set != kNoSet && entry.holders <= kFew / 2) {
    sets_.give_back(entry.several.set);
    entry.several.set = kNoSet;
  }
  if (entry.holders == 1) {
    const Holding one = *first;
    arrays_.give_back(entry.several.array, entry.several.size_class);
    entry.one = one;
  } else if (entry.holders <= 1u << entry.several.size_class >> 2) {
    resize(entry, entry.several.size_class - 1);
  }
}

bool Holdings::cover(const Entry& entry, const ReplicaSet& set, size_t count) const {
  if (count > entry.holders) return false;
  if (entry.holders == 1) return set.contains(entry.one.replica);
  if (entry.several.set == kNoSet) {
    const Holding* const first = arrays_[entry.several.array];
    size_t found = 0;
    for (uint32_t i = 0; i < entry.holders; ++i) found += set.contains(first[i].replica);
    return found == count;
  }
  const uint64_t* const words = sets_[entry.several.set];
  for (size_t i = 0; i < set.width(); ++i)
    if (set.word(i) & ~(i < sets_.width() ? words[i] : 0)) return false;
  return true;
}

void Holdings::among(const Entry& entry, const ReplicaSet& set, ReplicaSet& found) const {
  all(entry, found);
  std::span<uint64_t> words = found.words();
  for (size_t i = 0; i < words.size(); ++i) words[i] &= set.word(i);
}

void Holdings::all(const Entry& entry, ReplicaSet& found) const {
  if (entry.holders > 1 && entry.several.set != kNoSet) {
    found.assign({sets_[entry.several.set], sets_.width()});
    return;
  }
  found.reset(sets_.width());
  const Holding* const first = entry.holders == 1 ? &entry.one : arrays_[entry.several.array];
  for (uint32_t i = 0; i < entry.holders; ++i) found.add(first[i].replica);
}

void Holdings::resize(Entry& entry, uint32_t size_class) {
  const uint32_t array = arrays_.take(size_class);
  std::copy_n(arrays_[entry.several.array], entry.holders, arrays_[array]);
  arrays_.give_back(entry.several.array, entry.several.size_class);
  entry.several.array = array;
  entry.several.size_class = size_class;
}

}  // namespace penstock
