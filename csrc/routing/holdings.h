// Who holds one block: what is kept of each replica that does, in as little room as their number takes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "block_keys.h"
#include "replica_set.h"

namespace penstock {

// One replica's part in one key, from the time it is expected there or held there on.
struct Holding {
  uint32_t open;  // how many open requests there have the key, and let it be expected
  uint32_t at;    // its latest place in the replica's log (books.h)
  ReplicaId replica;
  bool held;  // the replica has reported it, or is assumed to hold it
};
static_assert(sizeof(Holding) == 12);

// A key and its holders. One holder is in the entry itself, as most keys of conversations have it;
// several are in an array in the order of their numbers, and beyond kFew there is a set besides, by
// which a walk takes all at once: the containers of Roaring bitmaps (Lemire et al., "Roaring Bitmaps:
// Implementation of an Optimized Software Library", 2018), but for what is kept of each holder.
struct Entry {
  struct Several {
    uint32_t array;       // of HoldingArrays
    uint32_t set;         // of HolderSets; kNoSet: few
    uint32_t size_class;  // the array has room for 2^size_class
  };

  BlockKey key;
  union {
    Holding one;
    Several several;
    uint32_t next_free;
  };
  uint32_t holders;  // how many; 0: the entry is free, or about to be
};
static_assert(sizeof(Entry) == 32);

constexpr uint32_t kFew = 32;
constexpr uint32_t kNoSet = ~uint32_t{0};

// Arrays of holdings, of sizes that are powers of two, in chunks that never move.
class HoldingArrays {
 public:
  // Throws std::length_error beyond 2^32 holdings.
  uint32_t take(uint32_t size_class);
  void give_back(uint32_t array, uint32_t size_class);
  Holding* operator[](uint32_t array) const {
    return &chunks_[array >> kChunkClass][array & ((1u << kChunkClass) - 1)];
  }

 private:
  static constexpr uint32_t kChunkClass = 16;  // an array of all replicas fits one
  static constexpr uint32_t kNone = ~uint32_t{0};

  std::vector<std::unique_ptr<Holding[]>> chunks_;
  uint64_t unused_ = 0;  // where nothing has been taken yet
  // Of each size the array that was given back last; its first holding's `at` is the one before.
  uint32_t free_[kChunkClass + 1] = {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone,
                                     kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
};

// Sets of as many words each.
class HolderSets {
 public:
  uint32_t take();  // an empty one
  void give_back(uint32_t set) { free_.push_back(set); }
  uint64_t* operator[](uint32_t set) { return &words_[set * width_]; }
  const uint64_t* operator[](uint32_t set) const { return &words_[set * width_]; }

  size_t width() const { return width_; }
  // Lets all sets have room for at least so many words.
  void widen(size_t words);

 private:
  size_t width_ = 1;
  std::vector<uint64_t> words_;
  std::vector<uint32_t> free_;
};

// The holders of entries.
class Holdings {
 public:
  // Replicas up to this one may be added from now on.
  void expect(ReplicaId replica) { sets_.widen(replica / 64 + 1); }

  // What is kept of a replica; nullptr: it holds nothing. Valid until a holder is added or removed.
  Holding* find(Entry& entry, ReplicaId replica) const;
  // The holding of a replica that has none, with zeros.
  Holding& add(Entry& entry, ReplicaId replica);
  // `holding` is one of the entry's.
  void remove(Entry& entry, Holding& holding);

  // Whether all of a set, of `count` replicas, are holders.
  bool cover(const Entry& entry, const ReplicaSet& set, size_t count) const;
  // Those of a set that are holders.
  void among(const Entry& entry, const ReplicaSet& set, ReplicaSet& found) const;
  void all(const Entry& entry, ReplicaSet& found) const;

 private:
  void resize(Entry& entry, uint32_t size_class);

  HoldingArrays arrays_;
  HolderSets sets_;
};

}  // namespace penstock
