#include "entry_table.h"

#include <random>
#include <stdexcept>

namespace penstock {

namespace {

constexpr uint32_t kFirstBits = 6;
constexpr size_t kMostKeys = size_t{1} << 30;

uint64_t drawn() { return uint64_t{std::random_device{}()} << 32 | std::random_device{}(); }

}  // namespace

EntryTable::EntryTable()
    : seeds_{drawn(), drawn()}, shift_(32 - kFirstBits), slots_(size_t{1} << kFirstBits, {0, kNoEntry}) {}

// Both halves of a product of 64 bits (Wang Yi's wyhash mixes so).
uint32_t EntryTable::hash(const BlockKey& key) const {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{key.low ^ seeds_[0]} * (key.high ^ seeds_[1]);
  const uint64_t mixed = uint64_t(product) ^ uint64_t(product >> 64);
  return uint32_t(mixed ^ mixed >> 32);
}

EntryId EntryTable::find(const BlockKey& key, uint32_t hash) const {
  for (size_t slot = home(hash);; slot = after(slot)) {
    const Slot& each = slots_[slot];
    if (each.entry == kNoEntry || (each.hash == hash && (*this)[each.entry].key == key))
      return each.entry;
  }
}

EntryId EntryTable::find_or_add(const BlockKey& key, uint32_t hash) {
  size_t slot = home(hash);
  for (; slots_[slot].entry != kNoEntry; slot = after(slot))
    if (slots_[slot].hash == hash && (*this)[slots_[slot].entry].key == key)
      return slots_[slot].entry;
  if (size_ == kMostKeys) throw std::length_error("there are too many different blocks");
  if (8 * (size_ + 1) > 5 * slots_.size()) {
    grow();
    for (slot = home(hash); slots_[slot].entry != kNoEntry;) slot = after(slot);
  }
  EntryId id = free_;
  if (id == kNoEntry) {
    if (unused_ == kChunk * chunks_.size())
      chunks_.push_back(std::make_unique_for_overwrite<Entry[]>(kChunk));
    id = EntryId(unused_++);
  } else {
    free_ = (*this)[id].next_free;
  }
  Entry& entry = (*this)[id];
  entry.key = key;
  entry.holders = 0;
  slots_[slot] = {hash, id};
  ++size_;
  return id;
}

void EntryTable::erase(EntryId id) {
  Entry& entry = (*this)[id];
  size_t hole = home(hash(entry.key));
  while (slots_[hole].entry != id) hole = after(hole);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = after(hole); slots_[slot].entry != kNoEntry; slot = after(slot)) {
    // One that has its home behind the hole would not be found in it.
    if (((slot - home(slots_[slot].hash)) & mask) >= ((slot - hole) & mask)) {
      slots_[hole] = slots_[slot];
      hole = slot;
    }
  }
  slots_[hole].entry = kNoEntry;
  entry.holders = 0;
  entry.next_free = free_;
  free_ = id;
  --size_;
}

void EntryTable::grow() {
  std::vector<Slot> slots(2 * slots_.size(), {0, kNoEntry});
  slots.swap(slots_);
  --shift_;
  for (const Slot& each : slots) {
    if (each.entry == kNoEntry) continue;
    size_t slot = home(each.hash);
    while (slots_[slot].entry != kNoEntry) slot = after(slot);
    slots_[slot] = each;
  }
}

}  // namespace penstock
