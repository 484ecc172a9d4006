// Times the recurrences of layers that keep states by themselves:
//
//   scan_bench [threads] [name]
//
// with a checksum of what they write, which no change of their speed may change. Prompts are compared
// with the rate of the fused multiply-adds that a thread does on registers, and decoding with a plain
// sum over the same states, which are far larger than the caches.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string_view>
#include <vector>

#include "../checksum.h"
#include "../kernels/scan.h"
#include "../memory.h"
#include "../pool.h"
#include "../simd.h"
#include "read_loop.h"

using namespace penstock;

namespace {

struct Model {
  const char* name;
  bool delta;  // else a selective scan
  int groups;  // key heads, or groups of B and C
  int heads;
  int rows;  // key_dim, or state
  int columns;

  int64_t inputs() const { return int64_t(heads) * columns + 2 * int64_t(groups) * rows; }
  // Vector instructions for a number of the state and a token.
  int operations() const { return delta ? 4 : 3; }
  double numbers() const { return double(heads) * rows * columns; }
};

constexpr Model kModels[] = {{"delta 16/32 x 128 x 128", true, 16, 32, 128, 128},
                             {"delta 16/16 x 128 x 128", true, 16, 16, 128, 128},
                             {"mamba2 1/80 x 128 x 64", false, 1, 80, 128, 64},
                             {"mamba2 8/128 x 128 x 64", false, 8, 128, 128, 64}};

// One thread is timed by its processor's clock, which a busy machine disturbs less.
double seconds(bool processor) {
  timespec t;
  clock_gettime(processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

template <class F>
double best(Pool& pool, F f) {
  constexpr int kRepeats = 7;
  const bool processor = pool.threads() == 1;
  double least = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = seconds(processor);
    pool.run(f);
    least = std::min(least, seconds(processor) - start);
  }
  return least;
}

// Fused multiply-adds of 16 lanes in a second, on registers.
double rate(Pool& pool) {
  constexpr int kRounds = 4'000'000;
  std::vector<float> sums(size_t(pool.threads()) * 16);
  const double least = best(pool, [&](Worker& worker) {
    const f32x16 by = f32x16::broadcast(0.5f);
    f32x16 a = by, b = a + by, c = b + by, d = c + by, e = d + by;  // fewer would wait for each other
    for (int i = 0; i < kRounds; ++i) {
      a = fma(a, by, by);
      b = fma(b, by, by);
      c = fma(c, by, by);
      d = fma(d, by, by);
      e = fma(e, by, by);
    }
    sums[size_t(worker.id) * 16] = hsum(a + b + c + d + e);
  });
  return 5.0 * kRounds * pool.threads() / (sums[0] == 0.25f ? 1.0 : least);  // keep the sums
}

// A step of sequences with equally many tokens, each behind as many others.
struct Setup {
  Model model;
  int tokens;
  std::vector<float> x, gates, out, a_log, dt_bias, d;
  std::vector<int32_t> starts{0}, lens, slots, seen, tentative;
  Memory memory;
  StateGeometry at{};
  StepView step{};

  Setup(const Model& m, int sequences, int each) : model(m), tokens(sequences * each) {
    std::mt19937 random(1);
    const auto draw = [&](std::vector<float>& to, size_t size) {
      to.resize(size);
      for (float& value : to) value = float(random() % 1000) / 500 - 1;
    };
    draw(x, size_t(tokens) * m.inputs());
    draw(gates, size_t(tokens) * 2 * m.heads);
    for (auto* weights : {&a_log, &dt_bias, &d}) draw(*weights, size_t(m.heads));
    out.resize(size_t(tokens) * m.heads * m.columns);
    for (int s = 0; s < sequences; ++s) {
      starts.push_back(starts.back() + each);
      lens.push_back(2 * each);
      seen.push_back(each);
      slots.push_back(s);
      tentative.push_back(0);
    }
    at.heads = m.heads;
    at.rows = m.rows;
    at.columns = m.columns;
    at.log = slot_bytes();
    memory = Memory(slot_bytes() * size_t(sequences));
    auto* state = reinterpret_cast<float*>(memory.data());
    for (size_t i = 0; i < memory.bytes() / sizeof(float); ++i)
      state[i] = float(random() % 1000) / 500 - 1;
    step.query_starts = starts.data();
    step.context_lens = lens.data();
    step.tokens = tokens;
    step.sequences = sequences;
    step.states = {slots.data(), seen.data(), tentative.data(), {}};
  }

  size_t slot_bytes() const {
    return size_t(model.heads) * size_t(tiles_of(model.columns)) * kTileColumns *
           size_t(model.rows) * sizeof(float);
  }
  static Array array(std::vector<float>& values, int64_t cols) {
    return {reinterpret_cast<std::byte*>(values.data()), Elem::f32, cols};
  }

  void run(Worker& worker) {
    const StateLayer state{memory.data(), slot_bytes(), at, Elem::f32, 1};
    const int64_t columns = int64_t(model.heads) * model.columns;
    if (model.delta)
      gated_delta({state, array(x, model.inputs()), array(gates, 2 * model.heads),
                   array(out, columns), a_log.data(), dt_bias.data(), model.groups, false},
                  step, worker);
    else
      selective_scan({state, array(x, model.inputs()), array(gates, 2 * model.heads),
                      array(out, columns), a_log.data(), dt_bias.data(), d.data(), model.groups,
                      0.0f, 10.0f},
                     step, worker);
  }
  uint32_t checksum() const {
    return crc32c(std::as_bytes(std::span(out)), crc32c({memory.data(), memory.bytes()}));
  }
};

void time_step(const Model& model, int sequences, int each, Pool& pool, double fmas) {
  Setup s(model, sequences, each);
  const StateLayer state{s.memory.data(), s.slot_bytes(), s.at, Elem::f32, 1};
  pool.reserve_scratch(scan_scratch_bytes(state));
  pool.run([&](Worker& worker) { s.run(worker); });
  const uint32_t sum = s.checksum();
  const double time = best(pool, [&](Worker& worker) { s.run(worker); });
  const double work = model.operations() * model.numbers() / 16 * s.tokens / fmas;
  std::vector<float> sums(size_t(pool.threads()) * 16);
  const double read = best(pool, [&](Worker& worker) {
    const auto [begin, end] = share(int64_t(s.memory.bytes() / 256), worker);
    read_bytes(s.memory.data() + begin * 256, size_t(end - begin) * 256,
               &sums[size_t(worker.id) * 16]);
  });
  std::printf("%-24s %2d x %3d: %8.3f ms; arithmetic %8.3f ms, reading %7.3f ms; %08x\n", model.name,
              sequences, each, time * 1e3, work * 1e3, read * 1e3, sum);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string_view only = argc > 2 ? argv[2] : "";
  Pool pool(threads, false);
  const double fmas = rate(pool);
  std::printf("threads: %d, %.2f G vector multiply-adds/s\n", threads, fmas * 1e-9);
  for (const Model& model : kModels) {
    if (std::string_view(model.name).find(only) == std::string_view::npos) continue;
    for (const auto& [sequences, each] : {std::pair{1, 512}, {1, 1}, {64, 1}, {16, 32}})
      time_step(model, sequences, each, pool, fmas);
  }
}
