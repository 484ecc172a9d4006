// One rank's view of memory that the processes of all ranks share, in which they exchange columns.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace penstock {

// Memory of a file descriptor, mapped for as long as this lives. Throws std::invalid_argument where
// it is smaller than `bytes`, and std::system_error where it cannot be mapped.
class SharedMapping {
 public:
  SharedMapping(int fd, size_t bytes);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

// The memory begins as zeros and has, each on cache lines of its own: a word that is not 0 once the
// group has been given up, the number of threads that sleep, and for each rank how many gathers it
// has published. Behind them, from a page on, lie two slots of each rank. A gather's columns go to
// its slots in turn: who publishes gather g + 1 has read all of g, so nobody still reads the slot
// that is written for g + 2.
//
// All ranks make the same gathers in the same order. A rank waits for the others by spinning for a
// while, or hardly at all where the ranks are more than the cores, and then sleeps in the kernel on
// the word of the rank that it waits for.
//
// Of some gathers rank 0 alone reads what the others have. These do not wait for each other then, so
// who writes into a slot makes sure first that all have read what lay there (may_write).
class RankGroup {
 public:
  struct Place {
    int rank, world;
    size_t slot_bytes;  // of each rank's columns of a gather, at most
    bool crowded;       // ranks have more threads than there are cores
  };

  // What the memory of a group takes; interface/rank_segment.py has the same.
  static size_t bytes(int world, size_t slot_bytes);

  // The memory has bytes(), and is that of all ranks.
  RankGroup(std::shared_ptr<const SharedMapping> memory, const Place& place);

  int rank() const { return place_.rank; }
  int world() const { return place_.world; }
  size_t slot_bytes() const { return place_.slot_bytes; }

  // The number of the gather that comes next, from 1 on, modulo 2^32. Every worker asks for it
  // before the barrier behind which one of them publishes.
  uint32_t next() const { return gathers_ + 1; }
  // Returns once nobody reads any more what lies in the slot that this rank writes for the gather, or
  // the group has been given up, when that matters no longer. For every worker that writes.
  void may_write(uint32_t gather);
  std::byte* slot(int rank, uint32_t gather) const;
  // Has the others see what was written into this rank's slot: for one worker, once all have.
  void publish();
  // Waits until `other` has published the gather. False if the group was given up, or gives it up
  // where that takes longer than any step.
  bool wait(int other, uint32_t gather);
  bool given_up() const;
  // The time that worker 0 has waited for other ranks, in all gathers so far.
  std::chrono::steady_clock::duration waited() const { return waited_; }
  void add_waited(std::chrono::steady_clock::duration time) { waited_ += time; }

 private:
  using Word = std::atomic<uint32_t>;
  static_assert(Word::is_always_lock_free);

  Word& word(size_t line) const;
  Word& published(int rank) const { return word(size_t(kLines + rank)); }
  bool sleep(Word& word, uint32_t gather);

  static constexpr int kLines = 2;  // before those of the ranks
  static constexpr size_t kLine = 64;

  Place place_;
  std::shared_ptr<const SharedMapping> memory_;
  uint32_t gathers_ = 0;  // that this rank has published
  std::chrono::steady_clock::duration waited_{};
};

}  // namespace penstock
