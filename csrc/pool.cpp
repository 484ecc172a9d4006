#include "pool.h"

#include <cstdio>
#include <new>
#include <set>
#include <string>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
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

void bind_to(int cpu) {
#if defined(__linux__)
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  // Refused where the mask has shrunk since it was read; the thread then runs unbound, only slower.
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
#else
  (void)cpu;
#endif
}

}  // namespace

Barrier::Barrier(int count) : count_(uint32_t(count)), slots_(new Slot[size_t(count)]) {}

void Barrier::wait(int id) {
  if (count_ == 1) return;
  const uint32_t generation = generation_.value.load(std::memory_order_acquire);
  if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.value.store(0, std::memory_order_relaxed);
    generation_.value.store(generation + 1, std::memory_order_seq_cst);
    if (sleepers_.value.load(std::memory_order_seq_cst) != 0) wake_all(generation_.value);
    return;
  }
  uint32_t& spins = slots_[size_t(id)].spins;
  for (uint32_t i = 0; i < spins; ++i) {
    if (generation_.value.load(std::memory_order_acquire) != generation) {
      spins = spins * 2 < kMostSpins ? spins * 2 : kMostSpins;
      return;
    }
    cpu_pause();
  }
  spins = spins / 2 > kLeastSpins ? spins / 2 : kLeastSpins;
  // Announced before looking again: the last arriver either sees the sleeper, or the sleeper sees
  // the new generation.
  sleepers_.value.fetch_add(1, std::memory_order_seq_cst);
  while (generation_.value.load(std::memory_order_seq_cst) == generation)
    sleep_while_equal(generation_.value, generation);
  sleepers_.value.fetch_sub(1, std::memory_order_relaxed);
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

Pool::Pool(int threads, bool pin) : between_(threads), begin_(threads), end_(threads) {
  const std::vector<int> cpus = pin ? available_cpus() : std::vector<int>{};
  const bool bind = size_t(threads) <= cpus.size();
  for (int id = 0; id < threads; ++id) workers_.push_back({id, threads, nullptr, 0, &between_});
  try {
    for (int id = 1; id < threads; ++id)
      threads_.emplace_back([this, id, cpu = bind ? cpus[size_t(id)] : -1] { serve(id, cpu); });
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
  stop();
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
  begin_.wait(0);
  job_(context_, workers_[0]);
  end_.wait(0);
}

void Pool::serve(int id, int cpu) {
  if (cpu >= 0) bind_to(cpu);
  for (;;) {
    begin_.wait(id);
    if (stopping_) return;
    job_(context_, workers_[size_t(id)]);
    end_.wait(id);
  }
}

}  // namespace penstock
