// A persistent thread pool and the barrier between the phases of a step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "types.h"

namespace penstock {

// Sense-reversing barrier for a fixed set of workers. A waiter spins, then sleeps in the kernel, so
// threads of an idle pool cost nothing. How long it spins adapts, per worker: a spin that ended in
// sleep halves the next one, a spin that paid doubles it. On a machine with fewer free cores than
// threads it soon sleeps at once and leaves its core to the thread it waits for.
class Barrier {
 public:
  explicit Barrier(int count);

  // Returns once all `count` workers have called it. Memory written before is visible after.
  void wait(const Worker& worker) { wait(worker.id); }
  void wait(int id);

  // Counts `absent` workers as having arrived, without waiting.
  void arrive_for(int absent) { arrived_.value.fetch_add(uint32_t(absent)); }

 private:
  static constexpr uint32_t kLeastSpins = 32;    // about 1 us of pause instructions
  static constexpr uint32_t kMostSpins = 1024;   // about 50 us
  struct alignas(64) Slot {
    uint32_t spins = kMostSpins;
  };
  struct alignas(64) Counter {
    std::atomic<uint32_t> value{0};
  };

  const uint32_t count_;
  Counter arrived_;
  Counter generation_;
  Counter sleepers_;
  std::unique_ptr<Slot[]> slots_;
};

// The cores of this process's affinity mask, one hardware thread of every core before the second of
// any. Empty where the system has no such mask.
std::vector<int> available_cpus();

// `threads - 1` threads, and the caller of run() as worker 0. Not itself thread-safe: one run() at a
// time.
class Pool {
 public:
  // With `pin`, worker i > 0 is bound to the i-th of available_cpus(), unless there are more workers
  // than cpus. The caller is never bound: its affinity is not ours to change. Throws
  // std::system_error where the system starts no more threads.
  Pool(int threads, bool pin);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return int(workers_.size()); }

  // Makes every worker's scratch at least this large; what it held is lost.
  void reserve_scratch(size_t bytes);

  // Calls fn(Worker&) on every worker and returns when all have finished. fn must not throw.
  template <class F>
  void run(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    job_ = [](void* context, Worker& worker) { (*static_cast<Fn*>(context))(worker); };
    context_ = const_cast<void*>(static_cast<const void*>(&fn));
    start();
  }

 private:
  void start();
  void stop();
  void serve(int id, int cpu);

  Barrier between_;  // inside a job, for kernels
  Barrier begin_;    // separate barriers, so that waiting for work does not spoil
  Barrier end_;      // what between_ has learned about spinning
  void (*job_)(void*, Worker&) = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  std::vector<Worker> workers_;
  std::vector<std::thread> threads_;
};

// The share of worker `id` in `tasks` equal tasks: a contiguous range, sizes differing by one at
// most.
struct Share {
  int64_t begin, end;
};
inline Share share(int64_t tasks, const Worker& worker) {
  return {tasks * worker.id / worker.count, tasks * (worker.id + 1) / worker.count};
}

}  // namespace penstock
