// The entries of all keys, found by their keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "holdings.h"

namespace penstock {

using EntryId = uint32_t;
constexpr EntryId kNoEntry = ~EntryId{0};

// A hash table of slots of eight bytes, by open addressing: linear probing, and on deletion those
// behind are moved up (Knuth, "The Art of Computer Programming", volume 3, section 6.4, algorithm R),
// so no marks of what was there slow searches down. Entries stay where they are for as long as their
// keys do, in chunks that never move; an entry's number is given to another key after that.
//
// A table of millions of keys is in no cache, and a search waits for memory twice: for the slot and
// for the entry. So all keys of a request are looked up together (each()).
class EntryTable {
 public:
  EntryTable();

  size_t size() const { return size_; }
  Entry& operator[](EntryId id) { return chunks_[id / kChunk][id % kChunk]; }
  const Entry& operator[](EntryId id) const { return chunks_[id / kChunk][id % kChunk]; }

  uint32_t hash(const BlockKey& key) const;
  // kNoEntry: there is none.
  EntryId find(const BlockKey& key, uint32_t hash) const;
  // The entry of a key, which is made if there is none, without holders. Throws std::length_error
  // beyond 2^30 keys.
  EntryId find_or_add(const BlockKey& key, uint32_t hash);
  void erase(EntryId id);

  void prefetch(EntryId id) const { __builtin_prefetch(&(*this)[id], 1); }

  // Calls `visit(key, hash)` with one key after the other until it returns false; what they need of
  // memory is asked for before that, a batch at a time. `visit` may add and erase entries.
  template <class Visit>
  void each(BlockKeys keys, Visit&& visit) const {
    walk(keys.size(), [&](size_t i) { return keys[i]; }, visit);
  }
  template <class Visit>
  void each_backwards(BlockKeys keys, Visit&& visit) const {
    walk(keys.size(), [&](size_t i) { return keys[keys.size() - 1 - i]; }, visit);
  }

 private:
  struct Slot {
    uint32_t hash;
    EntryId entry;  // kNoEntry: free
  };
  static constexpr size_t kChunk = 4096;
  static constexpr size_t kBatch = 16;  // about as many loads as a core waits for at once

  // Slots are in the order of hashes, but for collisions, so a table grows in one pass.
  size_t home(uint32_t hash) const { return hash >> shift_; }
  size_t after(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  void grow();

  template <class At, class Visit>
  void walk(size_t count, At&& at, Visit&& visit) const {
    uint32_t hashes[kBatch];
    for (size_t first = 0; first < count; first += kBatch) {
      const size_t batch = std::min(kBatch, count - first);
      for (size_t i = 0; i < batch; ++i) {
        hashes[i] = hash(at(first + i));
        __builtin_prefetch(&slots_[home(hashes[i])], 1);
      }
      for (size_t i = 0; i < batch; ++i) {
        size_t slot = home(hashes[i]);
        while (slots_[slot].entry != kNoEntry && slots_[slot].hash != hashes[i]) slot = after(slot);
        if (slots_[slot].entry != kNoEntry) prefetch(slots_[slot].entry);
      }
      for (size_t i = 0; i < batch; ++i)
        if (!visit(at(first + i), hashes[i])) return;
    }
  }

  uint64_t seeds_[2];  // nobody can make up keys that all have one place in the table
  uint32_t shift_;     // what is left of a hash is a slot
  std::vector<Slot> slots_;
  size_t size_ = 0;
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  size_t unused_ = 0;  // the first entry that no key has had
  EntryId free_ = kNoEntry;
};

}  // namespace penstock
