#include "pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <set>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#endif

#include "simd.h"

namespace penstock {
namespace {

#if defined(__linux__)
void sleep_while_equal(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr,
          nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}
#else
void sleep_while_equal(std::atomic<uint32_t>& word, uint32_t value) { word.wait(value); }
void wake_all(std::atomic<uint32_t>& word) { word.notify_all(); }
#endif

constexpr size_t kScratchAlign = 64;

std::byte* allocate_scratch(size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kScratchAlign)));
}

void free_scratch(std::byte* scratch) {
  ::operator delete(scratch, std::align_val_t(kScratchAlign));
}

#if defined(__linux__)
bool bind_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
}

// Binds the calling thread for as long as it lives, if the thread's present mask has the cpu: who
// narrowed it since the pool was made has the last word.
class Bound {
 public:
  explicit Bound(int cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return;
    if (pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) != 0) return;
    if (CPU_ISSET(cpu, &before_) && CPU_COUNT(&before_) > 1) bound_ = bind_to(cpu);
  }
  ~Bound() {
    if (bound_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  cpu_set_t before_;
  bool bound_ = false;
};
#else
bool bind_to(int) { return false; }
struct Bound {
  explicit Bound(int) {}
};
#endif

std::vector<int> first_cpus(int threads, bool pin) {
  if (threads < 1) return {};
  std::vector<int> cpus = pin ? available_cpus() : std::vector<int>{};
  if (cpus.size() < size_t(threads)) return {};
  cpus.resize(size_t(threads));
  return cpus;
}

int at_least_one(int threads) {
  if (threads < 1) throw std::invalid_argument("a pool has at least one thread");
  return threads;
}

bool is_crowded(int threads) {
  const size_t usable = available_cpus().size();
  return usable && size_t(threads) > usable;
}

}  // namespace

Barrier::Barrier(int count, Patience patience)
    : count_(uint32_t(count)),
      patience_(patience),
      slots_(new Slot[size_t(count)]),
      last_on_(new std::atomic<int>[kPlaces]()) {
  for (int i = 0; i < count; ++i) slots_[size_t(i)] = {patience.most, 0};
}

bool Barrier::shares_cpu(int id) {
#if defined(__linux__)
  const int cpu = sched_getcpu();  // of the thread's own memory: no system call
  if (cpu < 0) return false;
  std::atomic<int>& last = last_on_[size_t(cpu % kPlaces)];
  const int before = last.load(std::memory_order_relaxed), self = id + 1;
  uint32_t& crowded = slots_[size_t(id)].crowded;
  if (before == self)  // not written: neighbours' places are in the same line
    return crowded != 0 && crowded-- != 0;
  last.store(self, std::memory_order_relaxed);
  crowded = before != 0 ? kHolds : 0;
  return before != 0;
#else
  return false;
#endif
}

void Barrier::wait(int id) {
  if (count_ == 1) return;
  const bool crossed = shares_cpu(id);
  const uint32_t generation = generation_.value.load(std::memory_order_acquire);
  if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.value.store(0, std::memory_order_relaxed);
    generation_.value.store(generation + 1, std::memory_order_seq_cst);
    if (sleepers_.value.load(std::memory_order_seq_cst) != 0) wake_all(generation_.value);
    return;
  }
  if (!crossed) {
    uint32_t& spins = slots_[size_t(id)].spins;
    for (uint32_t i = 0; i < spins; ++i) {
      if (generation_.value.load(std::memory_order_acquire) != generation) {
        spins = spins * 2 < patience_.most ? spins * 2 : patience_.most;
        return;
      }
      cpu_pause();
    }
    spins = spins / 2 > patience_.least ? spins / 2 : patience_.least;
  }
  // Announced before looking again: the last arriver either sees the sleeper, or the sleeper sees
  // the new generation.
  sleepers_.value.fetch_add(1, std::memory_order_seq_cst);
  while (generation_.value.load(std::memory_order_seq_cst) == generation)
    sleep_while_equal(generation_.value, generation);
  sleepers_.value.fetch_sub(1, std::memory_order_relaxed);
}

void Tickets::refresh(Slot& own, uint64_t number) {
  uint64_t seen = own.taken.load(std::memory_order_relaxed);
  while (int64_t(seen - (number << kBits)) >> kBits < 0 &&
         !own.taken.compare_exchange_weak(seen, number << kBits, std::memory_order_relaxed)) {}
}

Share Tickets::Phase::next() {
  if (count_ == 1) {
    const Share all{0, tasks_};
    tasks_ = 0;
    return all;
  }
  constexpr uint64_t kTaken = (uint64_t(1) << kBits) - 1;
  for (int looked = 0; looked < count_;) {
    const Share whole = share(tasks_, whose_, count_);
    const int64_t size = whole.end - whole.begin;
    std::atomic<uint64_t>& state = tickets_.slots_[size_t(whose_)].taken;
    uint64_t seen = state.load(std::memory_order_relaxed);
    for (;;) {
      // A later phase means that somebody found this one finished.
      const int64_t later = int64_t(seen - (number_ << kBits)) >> kBits;  // modulo 2^32, signed
      const int64_t taken = later == 0 ? int64_t(seen & kTaken) : later < 0 ? 0 : size;
      if (taken >= size) break;
      // An eighth of what is left: few pieces, and those in flight at the end are small.
      const int64_t piece = std::min(size - taken, std::max(least_, (size - taken) / 8));
      // Relaxed: what the tasks read and write is ordered by the barriers around the phase.
      if (state.compare_exchange_weak(seen, number_ << kBits | uint64_t(taken + piece),
                                      std::memory_order_relaxed))
        return {whole.begin + taken, whole.begin + taken + piece};
    }
    whose_ = whose_ + 1 == count_ ? 0 : whose_ + 1;
    ++looked;
  }
  return {0, 0};
}

std::vector<int> available_cpus() {
  std::vector<int> firsts, others;
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {};
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                             "/topology/thread_siblings_list";
    std::string siblings = std::to_string(cpu);  // a core of its own, where sysfs does not say
    if (std::FILE* file = std::fopen(path.c_str(), "r")) {
      char line[256];
      if (std::fgets(line, sizeof line, file)) siblings = line;
      std::fclose(file);
    }
    (cores.insert(siblings).second ? firsts : others).push_back(cpu);
  }
  firsts.insert(firsts.end(), others.begin(), others.end());
#endif
  return firsts;
}

Pool::Pool(int threads, bool pin)
    : Pool(threads, first_cpus(threads, pin), is_crowded(threads)) {}

Pool::Pool(int threads, std::vector<int> cpus, bool crowded)
    : cpus_(std::move(cpus)),
      between_(at_least_one(threads), crowded ? kCrowded : kWithinStep),
      begin_(threads, kBetweenSteps),
      end_(threads, crowded ? kCrowded : kWithinStep),
      tickets_(threads),
      process_(int(getpid())) {
  if (!cpus_.empty() && cpus_.size() != size_t(threads))
    throw std::invalid_argument("a pool needs a cpu for every thread, or none");
  for (int id = 0; id < threads; ++id)
    workers_.push_back({id, threads, nullptr, 0, &between_, &tickets_});
  try {
    for (int id = 1; id < threads; ++id) threads_.emplace_back([this, id] { serve(id); });
  } catch (...) {
    begin_.arrive_for(threads - 1 - int(threads_.size()));
    stop();
    throw;
  }
}

void Pool::stop() {
  stopping_ = true;
  begin_.wait(0);
  for (std::thread& thread : threads_) thread.join();
}

Pool::~Pool() {
  if (getpid() == process_)
    stop();
  else  // a fork has the handles and not the threads: nobody answers
    (void)new std::vector<std::thread>(std::move(threads_));
  for (Worker& worker : workers_) free_scratch(worker.scratch);
}

void Pool::reserve_scratch(size_t bytes) {
  bytes = (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  for (Worker& worker : workers_) {
    if (worker.scratch_bytes >= bytes) continue;
    std::byte* larger = allocate_scratch(bytes);
    free_scratch(worker.scratch);
    worker.scratch = larger;
    worker.scratch_bytes = bytes;
  }
}

void Pool::start() {
  if (getpid() != process_)
    throw std::runtime_error(
        "this process was forked after the engine was loaded, and its threads stayed behind; load "
        "the engine after the fork, or start processes with the spawn method");
  const Bound bound(cpus_.empty() ? -1 : cpus_[0]);
  begin_.wait(0);
  job_(context_, workers_[0]);
  end_.wait(0);
}

void Pool::serve(int id) {
  if (!cpus_.empty()) bind_to(cpus_[size_t(id)]);
  for (;;) {
    begin_.wait(id);
    if (stopping_) return;
    job_(context_, workers_[size_t(id)]);
    end_.wait(id);
  }
}

}  // namespace penstock
