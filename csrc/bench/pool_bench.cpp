// Times the thread pool by itself. Not installed; tests/ checks what it does.
//
//   pool_bench [threads] [seconds]   cost of barriers and of tickets, then a step beside a process
//                                    that takes the last worker's core
//
// The step is made of equal ops of arithmetic, each with a barrier after it, as the executor runs
// them. Ratios are of wall-clock time, taken in turns alone and beside the other process: on a
// machine that does other work as well they mean little.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../pool.h"
#include "../simd.h"

using namespace penstock;

namespace {

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// About 2 us of arithmetic, from registers.
void task() {
  f32x16 x = f32x16::broadcast(0.5f);
  for (int i = 0; i < 256; ++i) {
    asm volatile("" : "+m"(x));
    x = fma(x, x, x);
  }
}

template <class F>
double nanoseconds_each(Pool& pool, int times, F f) {
  double best = 1e9;
  for (int run = 0; run < 5; ++run) {
    const double start = seconds();
    pool.run([&](Worker& worker) {
      for (int i = 0; i < times; ++i) f(worker);
    });
    best = std::min(best, seconds() - start);
  }
  return best / times * 1e9;
}

// A process that does nothing but keep a cpu busy.
class Neighbour {
 public:
  explicit Neighbour(int cpu) : process_(fork()) {
    if (process_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(1);
    for (;;) asm volatile("");
  }
  ~Neighbour() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

 private:
  pid_t process_;
};

// Ops a second.
template <class Op>
double rate(Pool& pool, double duration, Op op) {
  constexpr int kOps = 16;  // a step
  int64_t ops = 0;
  const double start = seconds();
  double elapsed = 0;
  for (; elapsed < duration; elapsed = seconds() - start) {
    pool.run([&](Worker& worker) {
      for (int i = 0; i < kOps; ++i) {
        op(worker);
        worker.barrier->wait(worker);
      }
    });
    ops += kOps;
  }
  return double(ops) / elapsed;
}

template <class Op>
void beside(const char* name, Pool& pool, int cpu, double duration, Op op) {
  std::vector<double> alone, crowded;
  for (int turn = 0; turn < 3; ++turn) {
    alone.push_back(rate(pool, duration / 6, op));
    const Neighbour neighbour(cpu);
    crowded.push_back(rate(pool, duration / 6, op));
  }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  std::printf("%-28s %9.1f us an op alone, %9.1f beside a busy process: %.2f times\n", name,
              1e6 / median(alone), 1e6 / median(crowded), median(alone) / median(crowded));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double duration = argc > 2 ? std::atof(argv[2]) : 3;
  const std::vector<int> cpus = available_cpus();
  if (threads < 1 || size_t(threads) > cpus.size()) {
    std::fprintf(stderr, "there are %zu cpus\n", cpus.size());
    return 1;
  }
  Pool pool(threads, true);
  std::printf("%d threads\n", threads);
  std::printf("barrier            %7.0f ns\n", nanoseconds_each(pool, 20000, [](Worker& worker) {
                worker.barrier->wait(worker);
              }));
  std::printf("phase of no tasks  %7.0f ns\n", nanoseconds_each(pool, 20000, [](Worker& worker) {
                auto phase = worker.tickets->open(worker, 0, 1);
                while (!phase.next().empty()) {}
                worker.barrier->wait(worker);
              }) );
  std::printf("piece              %7.1f ns\n", [&] {
    double least = 1e9;
    for (int round = 0; round < 5; ++round) pool.run([&](Worker& worker) {
      constexpr int64_t kTasks = 100'000;
      int64_t pieces = 0;
      const double start = seconds();
      auto phase = worker.tickets->open(worker, kTasks, 1);
      while (!phase.next().empty()) ++pieces;
      if (worker.id == 0) least = std::min(least, (seconds() - start) / double(pieces) * 1e9);
      worker.barrier->wait(worker);
    });
    return least;
  }());
  std::printf("empty run          %7.0f ns\n", [&] {
    const double start = seconds();
    for (int i = 0; i < 5000; ++i) pool.run([](Worker&) {});
    return (seconds() - start) / 5000 * 1e9;
  }());

  for (const int64_t tasks : {64, 512, 16384}) {
    char name[64];
    std::snprintf(name, sizeof name, "%ld tasks, even shares", long(tasks));
    beside(name, pool, cpus[size_t(threads) - 1], duration, [&](Worker& worker) {
      const Share mine = share(tasks, worker);
      for (int64_t i = mine.begin; i < mine.end; ++i) task();
    });
    std::snprintf(name, sizeof name, "%ld tasks, tickets", long(tasks));
    beside(name, pool, cpus[size_t(threads) - 1], duration, [&](Worker& worker) {
      auto phase = worker.tickets->open(worker, tasks, 4);
      for (Share some = phase.next(); !some.empty(); some = phase.next())
        for (int64_t i = some.begin; i < some.end; ++i) task();
    });
  }
  return 0;
}
