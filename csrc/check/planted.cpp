// Faults on purpose, one a run: a checked build (PENSTOCK_SANITIZE) that does not report them
// checks nothing. Each prints what it did, which nobody should get to read.
//
//   planted buffer     writes one element beyond a buffer of an executor's arena
//   planted row        writes behind the columns of a row, where the next begins later
//   planted scratch    reads one byte beyond a worker's scratch
//   planted undefined  adds one to the largest int
//   planted race       two workers write one number, without a barrier
#include <climits>
#include <cstdio>
#include <cstring>

#include "../executor.h"

using namespace penstock;

namespace {

Executor make() {
  return {{.threads = 1,
           .cpus = {},
           .crowded = true,
           .num_blocks = 0,
           .max_tokens = 2,
           .max_logits = 2,
           .max_sequences = 1,
           .max_positions = 1,
           .vocabulary = 1,
           .arena_bytes = 1024,
           .kv_elem = Elem::f32},
          {}};
}

void overrun_buffer() {
  Executor executor = make();
  const BufferId first = executor.add_buffer(0, Elem::f32, 16, 64, RowKind::tokens);
  executor.add_buffer(128, Elem::f32, 16, 64, RowKind::tokens);
  executor.buffer(first).row<volatile float>(1)[16] = 1;
}

void overrun_row() {
  Executor executor = make();
  const BufferId first = executor.add_buffer(0, Elem::f32, 16, 128, RowKind::tokens);
  executor.buffer(first).row<volatile float>(0)[16] = 1;
}

void overrun_scratch() {
  Pool pool(1, false);
  pool.reserve_scratch(64);
  pool.run([](Worker& worker) {
    std::printf("%d", int(*(volatile std::byte*)(worker.scratch + worker.scratch_bytes)));
  });
}

void overflow() {
  volatile int most = INT_MAX;
  most = most + 1;
}

void race() {
  Pool pool(2, false);
  int number = 0;
  for (int i = 0; i < 1000; ++i)
    pool.run([&](Worker& worker) { *(volatile int*)&number = worker.id; });
}

}  // namespace

int main(int argc, char** argv) {
  struct Fault {
    const char* name;
    void (*commit)();
  };
  const Fault faults[] = {{"buffer", overrun_buffer},
                          {"row", overrun_row},
                          {"scratch", overrun_scratch},
                          {"undefined", overflow},
                          {"race", race}};
  for (const Fault& fault : faults)
    if (argc == 2 && std::strcmp(argv[1], fault.name) == 0) {
      fault.commit();
      std::printf("%s: nobody noticed\n", fault.name);
      return 0;
    }
  std::fprintf(stderr, "planted buffer | row | scratch | undefined | race\n");
  return 2;
}
