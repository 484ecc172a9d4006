// Pages of the KV cache, cleared before steps write to them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "pool.h"

namespace penstock {

// A thread that has the system clear pages while no step runs; pages that it has not come to are cleared at the begin
// of the step that needs them, by all of its workers.
//
// The system clears memory where it is first written, a huge page in 0.1 to 5 ms (in a virtual machine, whose host has
// to find the memory too), and every layer begins huge pages of its own, while the other workers wait. The pool hands
// out blocks that were never used in the order of their numbers, so those that come next are known. Where the system
// cannot do it (Linux before 5.14, others) each op clears what it writes to. In a process that was forked since,
// nothing is done, as nothing runs there.
class PagesAhead {
 public:
  // parts: those of the cache, each of whole blocks of `block_bytes`. At least `ahead` blocks behind the last one that
  // was written are kept clear, and as many as were written, up to kMostAhead in bytes of all parts.
  PagesAhead(std::vector<std::span<std::byte>> parts, size_t block_bytes, int64_t ahead);
  ~PagesAhead();

  // Around each step; it writes to blocks up to `last`.
  void begin_step(int64_t last);
  void end_step();

  // Whether the step needs pages that are not clear. If so, all workers call clear_missing, and wait for each other.
  bool missing() const { return !missing_.empty(); }
  void clear_missing(Worker& worker) const;

 private:
  static constexpr size_t kMostAhead = size_t(1) << 30;

  struct Part {
    std::span<std::byte> bytes;
    size_t cleared = 0;
    // Its next page that is not clear; empty where it is clear up to `wanted`.
    std::span<std::byte> next(size_t wanted) const;
  };
  // What the thread reads, too.
  struct State {
    size_t block_bytes = 0;
    int64_t least_ahead = 0, most_ahead = 0;  // blocks
    std::mutex mutex;  // of all below
    std::condition_variable changed;
    std::vector<Part> parts;
    int64_t used = 0;  // blocks
    uint64_t steps = 0;
    bool runs_step = false, ends = false;

    // The part that is furthest behind; null where all are as far ahead as they should be.
    Part* next();
    void run();
  };

  bool forked() const;

  const int process_;
  std::vector<std::span<std::byte>> missing_;  // pages of this step
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace penstock
