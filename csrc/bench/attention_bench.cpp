// Times attention and rope_write by themselves. Standalone:
//
//   g++ -std=c++20 -O3 -ffp-contract=off -march=native -Wno-psabi -pthread -o /tmp/attention_bench
//       csrc/bench/attention_bench.cpp csrc/kernels/{attention,attention_work,rope_write}.cpp
//       csrc/{pool,memory}.cpp
//
// Decode reads a cache far larger than L2 and is compared with a plain sum over the same bytes;
// prefill is reported in floating-point operations of visible scores and values.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "../kernels/attention.h"
#include "../kernels/rope_write.h"
#include "../memory.h"
#include "../pool.h"
#include "../simd.h"

using namespace penstock;

namespace {

struct Model {
  const char* name;
  int heads;
  int kv_heads;
  int head_dim;
  int value_dim = 0;  // of a cache of latents
};

constexpr Model kModels[] = {{"32/8 heads of 64", 32, 8, 64},
                             {"32/8 heads of 128", 32, 8, 128},
                             {"16/16 heads of 80", 16, 16, 80},
                             {"16 on latents", 16, 1, 576, 512},
                             {"128 on latents", 128, 1, 576, 512}};

// One thread is timed by its processor's clock, which runs only while it does: a busy machine
// disturbs that less.
double seconds(bool processor) {
  timespec t;
  clock_gettime(processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The least of `repeats` runs: other processes only ever add.
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

// A step of sequences with equal context and query lengths over a shuffled cache.
struct Setup {
  Model model;
  Elem elem;
  std::vector<int32_t> positions, slots, query_starts{0}, context_lens, block_starts{0}, block_ids;
  Memory cache;
  std::vector<std::byte> qkv, q, out;
  KvTables tables{};
  StepView step{};

  Setup(const Model& m, Elem e, int sequences, int queries, int context) : model(m), elem(e) {
    const int blocks = (context + kBlockSize - 1) / kBlockSize;
    block_ids.resize(size_t(blocks) * sequences);
    std::iota(block_ids.begin(), block_ids.end(), 0);
    std::mt19937 random(1);
    std::shuffle(block_ids.begin(), block_ids.end(), random);
    for (int s = 0; s < sequences; ++s) {
      for (int i = context - queries; i < context; ++i) {
        positions.push_back(i);
        slots.push_back(block_ids[size_t(s) * blocks + i / kBlockSize] * kBlockSize +
                        i % kBlockSize);
      }
      query_starts.push_back(query_starts.back() + queries);
      block_starts.push_back(block_starts.back() + blocks);
      context_lens.push_back(context);
    }
    cache = Memory(kv().block_bytes() * block_ids.size());
    fill_cache(random);
    const size_t tokens = positions.size();
    qkv.resize(tokens * (m.heads + 2 * m.kv_heads) * m.head_dim * sizeof(float));
    q.resize(tokens * m.heads * m.head_dim * sizeof(float));
    out.resize(q.size());
    auto* x = reinterpret_cast<float*>(qkv.data());
    for (size_t i = 0; i < qkv.size() / sizeof(float); ++i) x[i] = float(random() % 1000) / 500 - 1;
    fill(q.data(), q.size(), activations(), random);
    step.positions = positions.data();
    step.query_starts = query_starts.data();
    step.context_lens = context_lens.data();
    tables = {slots.data(), block_starts.data(), block_ids.data(), int(block_ids.size())};
    step.groups = {&tables, 1};
    step.tokens = int(tokens);
    step.sequences = sequences;
  }

  KvLayer kv() const {
    return KvLayer::alone(const_cast<std::byte*>(cache.data()), elem, model.kv_heads,
                          model.head_dim, model.value_dim);
  }
  Elem activations() const {
    return elem == Elem::f32 || elem == Elem::f16 ? Elem::f32 : Elem::bf16;
  }
  Array array(const std::vector<std::byte>& v, int dim) const {
    return {const_cast<std::byte*>(v.data()), activations(), int64_t(model.heads) * dim};
  }

  static void fill(std::byte* to, size_t bytes, Elem elem, std::mt19937& random) {
    if (elem == Elem::f32) {
      auto* x = reinterpret_cast<float*>(to);
      for (size_t i = 0; i < bytes / 4; ++i) x[i] = float(random() % 1000) / 500 - 1;
    } else {
      auto* x = reinterpret_cast<uint16_t*>(to);
      for (size_t i = 0; i < bytes / 2; ++i) {
        const float value = float(random() % 1000) / 500 - 1;
        x[i] = elem == Elem::bf16 ? to_bf16(value).bits : to_f16(value).bits;
      }
    }
  }

  void fill_cache(std::mt19937& random) {
    if (!kv().key_tile().coded()) return fill(cache.data(), cache.bytes(), elem, random);
    for (size_t i = 0; i < cache.bytes(); ++i)
      cache.data()[i] = std::byte(uint8_t(int(random() % 255) - 127));
    const KvLayer layer = kv();
    for (int64_t block = 0; block < int64_t(block_ids.size()); ++block)
      for (int head = 0; head < layer.kv_heads; ++head)
        for (const bool values : {false, true}) {
          const KvTile tile = values ? layer.value_tile() : layer.key_tile();
          if (values && layer.latent()) continue;
          std::byte* const at = values ? layer.values(block, head) : layer.keys(block, head);
          std::fill_n(reinterpret_cast<bf16*>(at + tile.element_bytes()), tile.scale_bytes() / 2,
                      to_bf16(1.0f / 127));
        }
  }
};

double time_attention(const Setup& s, Pool& pool) {
  const AttentionShape shape{s.model.heads, s.model.kv_heads, s.model.head_dim, 0,
                             s.model.value_dim};
  AttentionWork work(shape, {s.step.tokens, s.step.sequences,
                             *std::max_element(s.context_lens.begin(), s.context_lens.end()),
                             pool.threads()});
  build_attention_work(s.step, work);
  const AttentionArgs args{s.kv(),
                           s.array(s.q, s.model.head_dim),
                           s.array(s.out, s.kv().out_dim()),
                           s.model.heads,
                           0.125f,
                           0};
  pool.reserve_scratch(attention_scratch_bytes(shape));
  return best(pool, [&](Worker& worker) { attention(args, s.step, work, worker); });
}

double time_rope_write(const Setup& s, Pool& pool) {
  const int half = s.model.head_dim / 2;
  const std::vector<float> table(size_t(s.positions.back() + 1) * half, 0.5f);
  const std::vector<float> norm(size_t(s.model.head_dim), 1.0f);
  Array qkv = s.array(s.qkv, s.model.head_dim);
  qkv.elem = Elem::f32;
  qkv.cols = int64_t(s.model.heads + 2 * s.model.kv_heads) * s.model.head_dim;
  const RopeWriteArgs args{s.kv(),
                           qkv,
                           s.array(s.q, s.model.head_dim),
                           s.model.heads,
                           {table.data(), table.data(), 2 * half, false},
                           norm.data(),
                           norm.data(),
                           1e-6f};
  return best(pool, [&](Worker& worker) { rope_write(args, s.step, worker); });
}

// Seconds to read the cache once: the floor of decode.
double time_read(const Setup& s, Pool& pool) {
  std::vector<float> sums(size_t(pool.threads()) * 16);
  const double least = best(pool, [&](Worker& worker) {
    const auto [begin, end] = share(int64_t(s.cache.bytes() / 256), worker);
    f32x16 a = f32x16::zero(), b = a, c = a, d = a;
    const auto* x = reinterpret_cast<const float*>(s.cache.data());
    for (int64_t i = begin * 64; i < end * 64; i += 64) {
      a += f32x16::load(x + i);
      b += f32x16::load(x + i + 16);
      c += f32x16::load(x + i + 32);
      d += f32x16::load(x + i + 48);
    }
    sums[size_t(worker.id) * 16] = hsum((a + b) + (c + d));
  });
  if (std::accumulate(sums.begin(), sums.end(), 0.0f) == 0.25f) std::puts("");  // keep the sums
  return least;
}

const char* name(Elem e) {
  switch (e) {
    case Elem::f32: return "f32";
    case Elem::bf16: return "bf16";
    case Elem::f16: return "f16";
    case Elem::i8: return "int8";
    case Elem::i4: return "int4";
    case Elem::k8v4: return "k8v4";
    case Elem::e4m3: return "fp8";
    default: return "?";
  }
}

void decode(const Model& model, Elem elem, int sequences, int context, Pool& pool) {
  const Setup s(model, elem, sequences, 1, context);
  double read = 1e9, attend = 1e9;
  for (int turn = 0; turn < 3; ++turn) {  // in turns: what else runs disturbs both
    read = std::min(read, time_read(s, pool));
    attend = std::min(attend, time_attention(s, pool));
  }
  const double gb = double(s.cache.bytes()) * 1e-9;
  std::printf("decode  %-18s %-4s %3d x %6d: %8.3f ms  %6.1f GB/s  read %6.1f GB/s  %3.0f %%\n",
              model.name, name(elem), sequences, context, attend * 1e3, gb / attend, gb / read,
              100 * read / attend);
}

void prefill(const Model& model, Elem elem, int queries, int context, Pool& pool) {
  const Setup s(model, elem, 1, queries, context);
  const double attend = time_attention(s, pool);
  const double rope = model.value_dim ? 0 : time_rope_write(s, pool);
  const double seen = double(queries) * (context - queries) + 0.5 * queries * (queries + 1.0);
  const double flops = 2.0 * model.heads * (model.head_dim + s.kv().out_dim()) * seen;
  std::printf("prefill %-18s %-4s %5d of %6d: %8.3f ms  %7.1f GFLOP/s  rope_write %7.3f ms\n",
              model.name, name(elem), queries, context, attend * 1e3, flops / attend * 1e-9,
              rope * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string_view only = argc > 2 ? argv[2] : "";  // models with this in their name
#if defined(__AMX_BF16__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    std::puts("the system does not grant AMX tiles");
    return 1;
  }
#endif
  Pool pool(threads, false);
  std::printf("threads: %d\n", threads);
  for (const Model& model : kModels) {
    if (std::string_view(model.name).find(only) == std::string_view::npos) continue;
    for (const Elem elem : {Elem::bf16, Elem::i8, Elem::e4m3, Elem::k8v4, Elem::i4}) {
      if (elem != Elem::bf16 && elem != Elem::i8 && model.value_dim) continue;
      for (const auto& [sequences, context] :
           {std::pair{1, 512}, {1, 2048}, {1, 8192}, {1, 32768}, {16, 2048}})
        decode(model, elem, sequences, context, pool);
      for (const auto& [queries, context] : {std::pair{512, 512}, {512, 4096}})
        prefill(model, elem, queries, context, pool);
    }
  }
}
