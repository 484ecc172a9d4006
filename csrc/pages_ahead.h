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

namespace penstock {

// A thread that has the system clear pages while no step runs.
//
// The system clears memory where it is first written, a huge page in 0.1 to 0.9 ms, and every layer begins huge
// pages of its own. The pool hands out blocks that were never used in the order of their numbers, so those that come
// next are known. Where the system cannot do it (Linux before 5.14, others) steps clear their pages themselves. In a
// process that was forked since, nothing is done, as nothing runs there.
class PagesAhead {
 public:
  // parts: those of the cache, each of whole blocks of `block_bytes`. So many blocks `ahead` of the last one that was
  // written are kept clear.
  PagesAhead(std::vector<std::span<std::byte>> parts, size_t block_bytes, int64_t ahead);
  ~PagesAhead();

  // Around each step; it writes to blocks up to `last`.
  void begin_step(int64_t last);
  void end_step();

 private:
  struct Part {
    std::span<std::byte> bytes;
    size_t cleared = 0;
  };
  // What the thread reads, too.
  struct State {
    size_t block_bytes = 0;
    int64_t ahead = 0;  // blocks
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
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace penstock
