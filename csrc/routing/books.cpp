#include "books.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace penstock {

namespace {

constexpr size_t kAhead = 16;  // records whose entries are on their way from memory
constexpr size_t kIdle = 64;   // records that a log may have in vain, besides as many as count

}  // namespace

Book::Book(HolderIndex& index, size_t replica) : index_(index), replica_(ReplicaId(replica)) {
  if (replica >= kMaxReplicas)
    throw std::invalid_argument("a router has at most " + std::to_string(kMaxReplicas) +
                                " replicas");
  if (index.held_.knows(replica))
    throw std::invalid_argument("replica " + std::to_string(replica) + " has a book");
  index_.holdings_.expect(replica_);
  note_held();
}

std::vector<BlockKey> Book::keys() const {
  std::vector<BlockKey> keys;
  keys.reserve(held_);
  each_record(first_, log_.size(), [&](EntryId id, const Holding& holding) {
    if (holding.held) keys.push_back(index_.entries_[id].key);
  });
  return keys;
}

void Book::leave() {
  expect(0);
  each_record(first_, log_.size(), [&](EntryId id, Holding& holding) { drop(id, holding); });
  log_ = {};
  held_ = 0;
  there_ = false;
  set_full(false);
  index_.held_.drop(replica_);
}

void Book::expect(size_t records) {
  if (!there_) throw std::logic_error("the replica has left");
  if (log_.size() >= 2 * holdings_ + kIdle) sweep();
  if (log_.size() + records > UINT32_MAX) throw std::length_error("a replica has too many blocks");
}

Holding& Book::holding(const BlockKey& key, uint32_t hash) {
  const EntryId id = entries().find_or_add(key, hash);
  if (Holding* const known = find(id)) return *known;
  Holding& added = index_.holdings_.add(entries()[id], replica_);
  ++holdings_;
  append(id, added);
  return added;
}

void Book::hold(Holding& holding) {
  held_ += !holding.held;
  holding.held = true;
}

void Book::let_go(Holding& holding) {
  held_ -= holding.held;
  holding.held = false;
}

void Book::drop(EntryId id, Holding& holding) {
  Entry& entry = entries()[id];
  let_go(holding);
  index_.holdings_.remove(entry, holding);
  --holdings_;
  if (entry.holders == 0) entries().erase(id);
}

void Book::append(EntryId id, Holding& holding) {
  holding.at = uint32_t(log_.size());
  log_.push_back(id);
}

template <class Visit>
void Book::each_record(size_t first, size_t end, Visit&& visit) const {
  for (size_t i = first; i < end; ++i) {
    if (i + kAhead < end) index_.entries_.prefetch(log_[i + kAhead]);
    Holding* const holding = find(log_[i]);
    if (holding && holding->at == i) visit(log_[i], *holding);
  }
}

void Book::set_full(bool full) {
  if (full)
    index_.full_.add(replica_);
  else
    index_.full_.remove(replica_);
}

void Book::sweep() {
  size_t kept = 0;
  // Of an entry, the record that counts is the last one: none is met again in its new place.
  each_record(first_, log_.size(), [&](EntryId id, Holding& holding) {
    holding.at = uint32_t(kept);
    log_[kept++] = id;
  });
  log_.resize(kept);
  first_ = 0;
}

void ReportedBook::begin(BlockKeys keys) {
  expect(keys.size());
  entries().each(keys, [&](const BlockKey& key, uint32_t hash) {
    ++holding(key, hash).open;
    return true;
  });
}

void ReportedBook::end(BlockKeys keys) {
  expect(0);
  entries().each(keys, [&](const BlockKey& key, uint32_t hash) {
    const EntryId id = entries().find(key, hash);
    Holding* const holding = id == kNoEntry ? nullptr : find(id);
    if (holding && holding->open && --holding->open == 0 && !holding->held) drop(id, *holding);
    return true;
  });
}

void ReportedBook::change(BlockKeys added, BlockKeys removed) {
  expect(added.size());
  entries().each(added, [&](const BlockKey& key, uint32_t hash) {
    hold(holding(key, hash));
    return true;
  });
  entries().each(removed, [&](const BlockKey& key, uint32_t hash) {
    const EntryId id = entries().find(key, hash);
    if (Holding* const holding = id == kNoEntry ? nullptr : find(id)) {
      let_go(*holding);
      if (!holding->open) drop(id, *holding);
    }
    return true;
  });
  if (!removed.empty()) set_full(true);
  note_held();
}

void ReportedBook::replace(BlockKeys held) {
  expect(held.size());
  // What it still holds gets a new record, so that the old ones that count are of what it lost.
  const size_t end = log_.size();
  entries().each(held, [&](const BlockKey& key, uint32_t hash) {
    Holding& holding = this->holding(key, hash);
    if (holding.at < end) append(log_[holding.at], holding);
    hold(holding);
    return true;
  });
  each_record(first_, end, [&](EntryId id, Holding& holding) {
    let_go(holding);
    if (!holding.open) drop(id, holding);
  });
  set_full(false);
  note_held();
}

void AssumedBook::begin(BlockKeys keys) {
  keys = keys.first(capacity_);
  expect(keys.size());
  const size_t end = log_.size();
  // Of a prompt the last keys are the least recently used.
  entries().each_backwards(keys, [&](const BlockKey& key, uint32_t hash) {
    Holding& holding = this->holding(key, hash);
    if (holding.at < end) append(log_[holding.at], holding);
    hold(holding);
    return true;
  });
  if (holdings_ > capacity_) set_full(true);
  while (holdings_ > capacity_) {
    if (first_ + kAhead < log_.size()) entries().prefetch(log_[first_ + kAhead]);
    const EntryId id = log_[first_];
    Holding* const holding = find(id);
    if (holding && holding->at == first_) drop(id, *holding);
    ++first_;
  }
  note_held();
}

void AssumedBook::clear() {
  expect(0);
  each_record(first_, log_.size(), [&](EntryId id, Holding& holding) { drop(id, holding); });
  log_.clear();
  first_ = 0;
  set_full(false);
  note_held();
}

}  // namespace penstock
