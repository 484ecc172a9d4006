// The thread pool in Python: for tests, which watch what its workers do.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>
#include <sched.h>
#include <time.h>

#include <chrono>
#include <optional>
#include <thread>

#include "bindings.h"
#include "memory.h"
#include "pool.h"

namespace penstock {

struct PyPool {
  std::optional<Pool> pool;

  Pool& get() {
    if (!pool) throw std::runtime_error("this pool is closed");
    return *pool;
  }
};

namespace {

using namespace nb::literals;

// The cpus that each worker may run on, inside run().
std::vector<std::vector<int>> masks(PyPool& self) {
  Pool& pool = self.get();
  std::vector<std::vector<int>> found(size_t(pool.threads()));
  nb::gil_scoped_release unlocked;
  pool.run([&](Worker& worker) {
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) found[size_t(worker.id)].push_back(cpu);
  });
  return found;
}

// One step in which worker `late` sleeps before the first of two barriers. The processor time that
// each worker spends, in seconds.
std::vector<double> wait_for(PyPool& self, int late, double seconds) {
  Pool& pool = self.get();
  std::vector<double> spent(size_t(pool.threads()));
  const auto clock = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  };
  nb::gil_scoped_release unlocked;
  pool.run([&](Worker& worker) {
    const double start = clock();
    if (worker.id == late) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    worker.barrier->wait(worker);
    worker.barrier->wait(worker);
    spent[size_t(worker.id)] = clock() - start;
  });
  return spent;
}

// `phases` phases of so many tasks without barriers between them, of which the last is slow for
// worker `late`: it sleeps in each piece. Who did each task, [phase][task]; -1: nobody; -2: several.
std::vector<std::vector<int>> take_turns(PyPool& self, const std::vector<int64_t>& phases,
                                         int64_t least, int late, double seconds) {
  Pool& pool = self.get();
  expect(least >= 1, "a piece has at least one task");
  std::vector<std::vector<std::atomic<int>>> takers;
  for (const int64_t tasks : phases) {
    expect(tasks >= 0, "a phase has no negative number of tasks");
    takers.emplace_back(size_t(tasks));
    for (auto& taker : takers.back()) taker = -1;
  }
  {
    nb::gil_scoped_release unlocked;
    pool.run([&](Worker& worker) {
      for (size_t i = 0; i < phases.size(); ++i) {
        auto phase = worker.tickets->open(worker, phases[i], least);
        for (Share some = phase.next(); !some.empty(); some = phase.next()) {
          for (int64_t t = some.begin; t < some.end; ++t) {
            int nobody = -1;
            if (!takers[i][size_t(t)].compare_exchange_strong(nobody, worker.id))
              takers[i][size_t(t)] = -2;
          }
          if (worker.id == late && i + 1 == phases.size())
            std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        }
      }
    });
  }
  std::vector<std::vector<int>> who;
  for (const auto& phase : takers) who.emplace_back(phase.begin(), phase.end());
  return who;
}

// The pieces of one phase, as taken: (first task, one behind the last).
std::vector<std::pair<int64_t, int64_t>> pieces(PyPool& self, int64_t tasks, int64_t least) {
  expect(least >= 1 && tasks >= 0 && tasks <= Tickets::kMostTasks, "there is no such phase");
  Pool& pool = self.get();
  std::vector<std::vector<std::pair<int64_t, int64_t>>> taken(size_t(pool.threads()));
  {
    nb::gil_scoped_release unlocked;
    pool.run([&](Worker& worker) {
      auto phase = worker.tickets->open(worker, tasks, least);
      for (Share some = phase.next(); !some.empty(); some = phase.next())
        taken[size_t(worker.id)].emplace_back(some.begin, some.end);
    });
  }
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const auto& own : taken) all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::pair<size_t, size_t> page_range(size_t bytes, int id, int count, size_t page) {
  expect(count >= 1 && id >= 0 && id < count && page >= 1, "there is no such worker or page");
  const PageRange range = pages_of(bytes, id, count, page);
  return {range.begin, range.end};
}

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<PyPool>(m, "Pool")
      .def("__init__",
           [](PyPool* self, int threads, const std::vector<int>& cpus, bool crowded) {
             new (self) PyPool{};
             self->pool.emplace(threads, cpus, crowded);
           },
           "threads"_a, "cpus"_a, "crowded"_a)
      .def("masks", &masks)
      .def("wait_for", &wait_for, "late"_a, "seconds"_a)
      .def("take_turns", &take_turns, "phases"_a, "least"_a, "late"_a, "seconds"_a)
      .def("pieces", &pieces, "tasks"_a, "least"_a)
      .def("close", [](PyPool& self) {
        nb::gil_scoped_release unlocked;
        self.pool.reset();
      });
  m.def("page_range", &page_range, "bytes"_a, "id"_a, "count"_a, "page"_a);
}

}  // namespace penstock
