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

// How long a waiter spins before it sleeps in the kernel, in rounds of cpu_pause().
struct Patience {
  uint32_t least;
  uint32_t most;  // least < most: adapts, per worker
};

// Between steps. A spin that ended in sleep halves the next one, a spin that paid doubles it, so the
// threads of an idle pool cost nothing, and those of a busy one wake without the kernel.
constexpr Patience kBetweenSteps{32, 1024};  // about 1 and 50 us

// Between the ops of a step, where each worker has a core to itself. A thread that sleeps gives its core
// to any process that wants it, for a whole time slice of milliseconds, while everybody else waits;
// so no spin is cut short for one that did not pay. Who spins for milliseconds, though, uses up its
// own slice while the one it waits for is stopped, and is stopped when that one runs. (Two threads
// on two cores that other processes kept busy, medians of five runs: ops of 0.1 ms take 0.32 ms
// with kBetweenSteps, 0.15 ms so, 0.21 ms with 2 ms; of 1 ms, 1.32, 0.95 and 1.29 ms.)
constexpr Patience kWithinStep{5000, 5000};  // about 250 us

// Between the ops of a step, where workers have to share cores: soon a waiter sleeps at once, and
// leaves its core to the one it waits for.
constexpr Patience kCrowded = kBetweenSteps;

// Sense-reversing barrier for a fixed set of workers. A waiter spins, then sleeps in the kernel. One
// that shares its CPU with another worker, as unbound threads come to where other processes are busy,
// sleeps at once: it would spin for as long as it may in the way of the one it waits for. (Two threads
// of SmolLM2 135M so on one of four busy CPUs: 40 ms of processor time a token with spinning, and a
// thread alone 5.)
class Barrier {
 public:
  Barrier(int count, Patience patience);

  // Returns once all `count` workers have called it. Memory written before is visible after.
  void wait(const Worker& worker) { wait(worker.id); }
  void wait(int id);

  // Counts `absent` workers as having arrived, without waiting.
  void arrive_for(int absent) { arrived_.value.fetch_add(uint32_t(absent)); }

 private:
  struct alignas(64) Slot {
    uint32_t spins;
    uint32_t crowded;  // barriers yet at which this worker takes its CPU for shared
  };
  struct alignas(64) Counter {
    std::atomic<uint32_t> value{0};
  };

  const uint32_t count_;
  const Patience patience_;
  Counter arrived_;
  Counter generation_;
  Counter sleepers_;
  std::unique_ptr<Slot[]> slots_;

  // The worker, counted from 1, that was last here on each CPU; 0: none. CPUs with the same
  // remainder have one place: who shares it sleeps too often.
  static constexpr int kPlaces = 1024;
  // Of two on one CPU, the last to come at a barrier is the first at the next one, and finds itself:
  // so what was found holds for some barriers, and until the system has put them apart.
  static constexpr uint32_t kHolds = 64;
  std::unique_ptr<std::atomic<int>[]> last_on_;
  bool shares_cpu(int id);
};

// A contiguous range of tasks.
struct Share {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

// The share of worker `id` in `tasks` equal tasks: a contiguous range, sizes differing by one at
// most.
inline Share share(int64_t tasks, int id, int count) {
  return {tasks * id / count, tasks * (id + 1) / count};
}
inline Share share(int64_t tasks, const Worker& worker) {
  return share(tasks, worker.id, worker.count);
}

// Shares that are evened out while they are worked on: each worker takes its own share() piece by
// piece, then pieces of those who are behind. A core that is slower, or that another process takes
// for a while, so does less and holds nobody up for longer than one piece. Own tasks come first and
// in order: a worker still streams one run of memory, which lies on its own node.
//
//   Phase phase = worker.tickets->open(worker, tasks, 4);
//   for (Share some = phase.next(); !some.empty(); some = phase.next()) work(some);
//
// Every worker must open every phase, in the same order and with the same `tasks`; phases may
// follow each other without a barrier as far as the tickets are concerned. Nothing is ever reset:
// a share's state names the phase that it belongs to, and older ones count as untouched.
//
// A piece costs its owner one uncontended compare-and-swap, and the end of a phase one look at
// every worker's share (two threads: about
// 10 ns a piece; csrc/bench/pool_bench).
class Tickets {
 public:
  explicit Tickets(int count) : slots_(new Slot[size_t(count)]) {}

  class Phase {
   public:
    // The next tasks of this worker; empty when none are left, its own or others'.
    Share next();

   private:
    friend class Tickets;
    Phase(Tickets& tickets, int id, int count, uint64_t number, int64_t tasks, int64_t least)
        : tickets_(tickets),
          count_(count),
          number_(number),
          tasks_(tasks),
          least_(least),
          whose_(id) {}

    Tickets& tickets_;
    int count_;
    uint64_t number_;
    int64_t tasks_, least_;
    int whose_;  // share that tasks are being taken from
  };

  // Tasks of a phase, at most: fewer than a share can count, on any number of threads.
  static constexpr int64_t kMostTasks = (int64_t(1) << 32) - 1;

  // Pieces are of at least `least` tasks, 1 or more, and larger while much is left. At most
  // kMostTasks; a caller that computes `tasks` from sizes that are not known checks them beforehand.
  Phase open(const Worker& worker, int64_t tasks, int64_t least) {
    Slot& own = slots_[size_t(worker.id)];
    const uint64_t number = ++own.opened;
    if (number % kRefresh == 0) refresh(own, number);
    return {*this, worker.id, worker.count, number, tasks, least};
  }

 private:
  struct Slot {
    alignas(64) std::atomic<uint64_t> taken{0};  // phase << kBits | tasks of the share taken
    alignas(64) uint64_t opened = 0;             // phases, by this worker: nobody else's business
  };
  static constexpr int kBits = 32;
  // Phases are distinguished modulo 2^32: a share that stays empty for half of these, hours of work,
  // must not come to look as if it belonged to a later one.
  static constexpr uint64_t kRefresh = uint64_t(1) << 28;

  void refresh(Slot& own, uint64_t number);

  std::unique_ptr<Slot[]> slots_;
};

// The cores of this process's affinity mask, one hardware thread of every core before the second of
// any. Empty where the system has no such mask.
std::vector<int> available_cpus();

// `threads - 1` threads, and the caller of run() as worker 0. Not itself thread-safe: one run() at a
// time.
class Pool {
 public:
  // Worker i runs on cpus[i] alone, or where the system likes if there are no `cpus`. `crowded`: not
  // every worker has a core, or the processor time of one, to itself. The caller is
  // bound while it is inside run(), and gets back the affinity it had. A cpu that the system does
  // not allow, now or later, leaves its worker unbound: slower, not wrong. Throws
  // std::invalid_argument unless there is a thread and there are as many cpus as threads, or none,
  // and std::system_error where the system starts no more threads.
  Pool(int threads, std::vector<int> cpus, bool crowded);
  // With `pin`, to the first of available_cpus(), unless there are fewer of those than threads.
  Pool(int threads, bool pin);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return int(workers_.size()); }

  // Makes every worker's scratch at least this large; what it held is lost.
  void reserve_scratch(size_t bytes);

  // Calls fn(Worker&) on every worker and returns when all have finished. fn must not throw. Throws
  // std::runtime_error in a process forked since: threads stay behind in a fork.
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
  void serve(int id);

  std::vector<int> cpus_;
  Barrier between_;  // inside a job, for kernels
  Barrier begin_;    // separate barriers: waiting for work is another matter
  Barrier end_;
  Tickets tickets_;
  void (*job_)(void*, Worker&) = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  int process_;
  std::vector<Worker> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
