// Which replicas hold which blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "entry_table.h"
#include "levels.h"

namespace penstock {

// Replicas by how much of a prompt they hold. Memory is kept from one prompt to the next.
class Overlaps {
 public:
  struct Group {
    int64_t held = 0;  // tokens
    ReplicaSet replicas;
  };

  void clear() { size_ = 0; }
  Group& add(int64_t held) {
    if (size_ == groups_.size()) groups_.emplace_back();
    groups_[size_].held = held;
    return groups_[size_++];
  }
  std::span<Group> groups() { return {groups_.data(), size_}; }
  // The most first; groups that hold equally much become one.
  void sort();

 private:
  std::vector<Group> groups_;
  size_t size_ = 0;
};

// The holders of all keys; what it tells is defined by penstock/routing/holders.py. Each replica's part
// is kept true by a Book (books.h). Belongs to one thread.
//
// In the place of a table of holders for all, and of what is held, what is expected and how often for
// each replica, it has one entry for a key, which a request's calls find in one place each.
class HolderIndex {
 public:
  HolderIndex() = default;
  HolderIndex(const HolderIndex&) = delete;

  size_t size() const { return entries_.size(); }
  void holders(const BlockKey& key, ReplicaSet& found) const;

  // Appends the replicas of a set by how many tokens of a chain's beginning they hold, the fewest first.
  // Each replica is in one group.
  void prefixes(const Chain& chain, const ReplicaSet& among, Overlaps& found);

  // The set of replicas that have given up something for want of room.
  const ReplicaSet& full() const { return full_; }
  void set_full(const ReplicaSet& full) { full_ = full; }
  // How many keys replicas hold.
  const LoadLevels& held() const { return held_; }

 private:
  friend class Book;

  EntryTable entries_;
  Holdings holdings_;
  ReplicaSet full_;
  LoadLevels held_;
  ReplicaSet left_, here_;  // of a walk
};

}  // namespace penstock
