// What one replica holds: as it reports, or as is assumed.
#pragma once

#include <cstdint>
#include <vector>

#include "holder_index.h"

namespace penstock {

// Keeps an index true to one replica. What replicas hold is in the index alone; a book has the order
// in which that came, as a log of entries.
//
// A record of the log counts if the replica's holding says that it is the latest of its entry (`at`);
// others are passed over, and swept out once they are more than those that count. So a block that goes
// is found nowhere but in the index, and one that is used again costs a record. All keys of a replica
// are still at hand for when it leaves, and the least recently used first.
class Book {
 public:
  Book(const Book&) = delete;

  size_t held() const { return held_; }
  // All keys that it holds, the latest last.
  std::vector<BlockKey> keys() const;
  // The replica is there no more. Nothing else may be asked for then: it throws std::logic_error.
  void leave();

 protected:
  // Throws std::invalid_argument for a number that is too great, or of which there is a book.
  Book(HolderIndex& index, size_t replica);
  ~Book() = default;

  EntryTable& entries() { return index_.entries_; }
  // Makes room for as many records, and checks that the replica is there.
  void expect(size_t records);
  // The replica's holding of a key, which is made if there is none: then the log has it.
  Holding& holding(const BlockKey& key, uint32_t hash);
  // nullptr: it has none.
  Holding* find(EntryId id) const { return index_.holdings_.find(index_.entries_[id], replica_); }
  void hold(Holding& holding);
  void let_go(Holding& holding);
  // Takes the replica from the holders of a key.
  void drop(EntryId id, Holding& holding);
  void append(EntryId id, Holding& holding);
  // Calls `visit(id, holding)` with what records [first, end) have that count.
  template <class Visit>
  void each_record(size_t first, size_t end, Visit&& visit) const;
  void note_held() { index_.held_.put(replica_, int64_t(held_)); }
  void set_full(bool full);

  std::vector<EntryId> log_;
  size_t first_ = 0;     // records before this one do not count
  size_t holdings_ = 0;  // that the replica has, and records that count

 private:
  void sweep();

  HolderIndex& index_;
  const ReplicaId replica_;
  size_t held_ = 0;
  bool there_ = true;
};

// The cache of a replica that reports what it holds; what it does is defined by ReportedBook in
// penstock/routing/books.py. What it expects are holdings with open requests.
class ReportedBook : public Book {
 public:
  ReportedBook(HolderIndex& index, size_t replica) : Book(index, replica) {}

  void begin(BlockKeys keys);
  void end(BlockKeys keys);
  void change(BlockKeys added, BlockKeys removed);
  void replace(BlockKeys held);
  void clear() { replace({}); }
};

// The cache of a replica that reports nothing; what it does is defined by AssumedBook in
// penstock/routing/books.py.
class AssumedBook : public Book {
 public:
  AssumedBook(HolderIndex& index, size_t replica, size_t capacity)
      : Book(index, replica), capacity_(capacity) {}

  void begin(BlockKeys keys);
  void end(BlockKeys) { expect(0); }
  void clear();

 private:
  size_t capacity_;
};

}  // namespace penstock
