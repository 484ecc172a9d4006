// Sets of replicas.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

using ReplicaId = uint16_t;
// There are at most so many replicas, of numbers below this.
constexpr size_t kMaxReplicas = 65535;

// A set, as bits: bit i % 64 of word i / 64 is replica i. Words that it does not have are 0, so sets
// of different widths can be taken together. One that is assigned to again and again keeps its memory.
class ReplicaSet {
 public:
  void assign(std::span<const uint64_t> words) { words_.assign(words.begin(), words.end()); }
  void clear() { words_.clear(); }
  // As many words, all 0.
  void reset(size_t words) { words_.assign(words, 0); }

  size_t width() const { return words_.size(); }
  uint64_t word(size_t i) const { return i < words_.size() ? words_[i] : 0; }
  std::span<const uint64_t> words() const { return words_; }
  std::span<uint64_t> words() { return words_; }

  bool contains(size_t replica) const { return word(replica / 64) >> (replica % 64) & 1; }
  void add(size_t replica) {
    if (replica / 64 >= words_.size()) words_.resize(replica / 64 + 1);
    words_[replica / 64] |= bit(replica);
  }
  void remove(size_t replica) {
    if (replica / 64 < words_.size()) words_[replica / 64] &= ~bit(replica);
  }
  // Takes in what another set has, or takes out what it has.
  void add(const ReplicaSet& other) {
    if (other.width() > width()) words_.resize(other.width());
    for (size_t i = 0; i < other.width(); ++i) words_[i] |= other.words_[i];
  }
  void remove(const ReplicaSet& other) {
    const size_t both = std::min(width(), other.width());
    for (size_t i = 0; i < both; ++i) words_[i] &= ~other.words_[i];
  }

  bool empty() const {
    return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
  }
  size_t count() const {
    size_t count = 0;
    for (const uint64_t word : words_) count += size_t(std::popcount(word));
    return count;
  }

  static uint64_t bit(size_t replica) { return uint64_t{1} << (replica % 64); }

 private:
  std::vector<uint64_t> words_;
};

// Calls `visit` with the number of each bit of a word, from the lowest on.
template <class Visit>
void each_bit(uint64_t word, Visit&& visit) {
  for (; word; word &= word - 1) visit(size_t(std::countr_zero(word)));
}

}  // namespace penstock
