// The pool, its barrier and tickets, and an executor's steps on many threads, for builds that look
// for data races; without Python, whose own threads those builds do not know. What threads hand to
// each other is written plainly: only the pool orders it. Exits with 1 where a result is wrong.
#include <chrono>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "../executor.h"
#include "gathers.h"
#include "recurrences.h"

using namespace penstock;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds || ++failures > 20) return;
  std::printf("FAIL %s\n", what);
}

// Everybody is late at times, by less than a spin or by enough to let the others sleep.
void dawdle(int id, int round) {
  const unsigned mixed = unsigned(id * 7919 + round) * 2654435761u;
  if (mixed % 61 == 0) std::this_thread::sleep_for(std::chrono::microseconds(mixed % 700));
}

void check_barrier(Pool& pool, int rounds) {
  const int threads = pool.threads();
  std::vector<int> cells(static_cast<size_t>(threads)), wrong(cells.size());
  pool.run([&](Worker& worker) {
    for (int round = 1; round <= rounds; ++round) {
      cells[size_t(worker.id)] = round;
      dawdle(worker.id, round);
      worker.barrier->wait(worker);
      for (const int cell : cells) wrong[size_t(worker.id)] += cell != round;
      worker.barrier->wait(worker);
    }
  });
  for (const int count : wrong)
    expect(count == 0, "what was written before a barrier is seen after");
  for (int run = 0; run < rounds; ++run) {
    pool.run([&](Worker& worker) { cells[size_t(worker.id)] += worker.id; });
    for (size_t i = 0; i < cells.size(); ++i)
      expect(cells[i] == rounds + (run + 1) * int(i), "what a run wrote is seen after it");
  }
}

void check_tickets(Pool& pool, int rounds) {
  std::mt19937 rng(5);
  for (int round = 0; round < rounds; ++round) {
    // Phases without barriers between them, each of cells of its own.
    std::vector<std::vector<int>> phases(1 + rng() % 5);
    for (auto& cells : phases) cells.resize(rng() % 3 ? rng() % 200 : rng() % 3);
    const int64_t least = 1 + int64_t(rng() % 5);
    pool.run([&](Worker& worker) {
      for (auto& cells : phases) {
        auto phase = worker.tickets->open(worker, int64_t(cells.size()), least);
        for (Share some = phase.next(); !some.empty(); some = phase.next()) {
          for (int64_t i = some.begin; i < some.end; ++i) ++cells[size_t(i)];
          dawdle(worker.id, round);
        }
      }
    });
    for (const auto& cells : phases)
      for (const int taken : cells) expect(taken == 1, "each task is taken once");
  }
  for (const int64_t tasks : {(int64_t(1) << 25) + 3, Tickets::kMostTasks}) {
    std::vector<int64_t> taken(static_cast<size_t>(pool.threads()));
    pool.run([&](Worker& worker) {
      auto phase = worker.tickets->open(worker, tasks, 1 << 10);
      for (Share some = phase.next(); !some.empty(); some = phase.next())
        taken[size_t(worker.id)] += some.end - some.begin;
    });
    int64_t sum = 0;
    for (const int64_t each : taken) sum += each;
    expect(sum == tasks, "a phase of very many tasks is taken whole");
  }
}

// Whether a cache of these elements takes latents.
bool cached(Elem kv) { return kv != Elem::i4 && kv != Elem::k8v4 && kv != Elem::e4m3; }

// Four layers of a model, small and with a cache: all ops that share work, fused and apart, those of
// attention over latents, a convolution, and those of experts.
class Layer {
 public:
  static constexpr int kTokens = 40, kBlocks = 8, kHeads = 4, kKvHeads = 2, kDim = 16;
  static constexpr int kHidden = kHeads * kDim, kJoined = (kHeads + 2 * kKvHeads) * kDim;

  Layer(int threads, bool crowded, Elem kv)
      : executor_({threads, {}, crowded, kBlocks, kTokens, kTokens, 4, 256, kVocabulary,
                   size_t(kTokens) * 4 * (9 * kHidden + 4 * kJoined + kVocabulary + 160), kv},
                  {1, 4, KvLayer::alone(nullptr, kv, kKvHeads, kDim).block_bytes(),
                   {{kKvHeads, kDim, 0, 0, 0}, {kKvHeads, kDim, 0, 1, 0},
                    {1, kDim, 0, 2, 0, cached(kv) ? kLatent : 0},
                    {1, kHidden, 0, 3, 0, 0, 4}}}) {
    const BufferId x = buffer(Elem::f32, kHidden, RowKind::tokens);
    const BufferId normed = buffer(Elem::f32, kHidden, RowKind::tokens);
    const BufferId qkv = buffer(Elem::f32, kJoined, RowKind::tokens);
    const BufferId q = buffer(Elem::f32, kHidden, RowKind::tokens);
    const BufferId out = buffer(Elem::f32, kHidden, RowKind::tokens);
    const BufferId last = buffer(Elem::f32, kHidden, RowKind::selected);
    logits_ = buffer(Elem::f32, kVocabulary, RowKind::logits);
    best_ = buffer(Elem::i32, 1, RowKind::logits);
    const ConstantId angles = executor_.add_constant({});
    executor_.append_embed(constant(kVocabulary * kHidden), Elem::f32, x, kVocabulary);
    executor_.append_add_norm(x, kNone, normed, constant(kHidden), 1e-5f);
    executor_.append_linear(int_matrix(kJoined, 8), kNone, normed, qkv, Activation::none);
    executor_.append_rope_write({0, qkv, q, kHeads, {angles, angles, 0}, kNone, kNone, 0});
    executor_.append_attention({0, q, out, kHeads, 0.25f, 0});
    executor_.append_add_activated(x, out, x, Activation::silu);
    append_apart(x, normed, q, out);
    if (cached(kv)) append_latents(x, q, out);
    append_convolution(x, q, out);
    append_experts(x, out);
    executor_.append_select_rows(x, last, 0);
    executor_.append_linear(matrix(kVocabulary), kNone, last, logits_, Activation::none);
    executor_.append_argmax(logits_, best_);
    if (crowded) executor_.clear_pages_ahead(1);
  }

  // Logits and choices of steps of two sequences: prefill, then decode.
  std::vector<float> run(int steps) {
    std::vector<float> seen;
    int first[2] = {0, 0};
    for (int step = 0; step < steps; ++step) {
      std::vector<int32_t> tokens, positions, slots, starts{0}, lens, rows;
      for (int s = 0; s < 2; ++s) {
        const int count = step == 0 ? kTokens / 2 - 3 * s : 1;
        for (int i = 0; i < count; ++i) {
          const int at = first[s] + i, block = s * kBlocks / 2 + at / kBlockSize;
          tokens.push_back((at * 31 + s) % kVocabulary);
          positions.push_back(at);
          slots.push_back(block * kBlockSize + at % kBlockSize);
        }
        first[s] += count;
        starts.push_back(int32_t(tokens.size()));
        lens.push_back(first[s]);
        rows.push_back(starts.back() - 1);
      }
      std::vector<int32_t> blocks;
      for (int b = 0; b < kBlocks; ++b) blocks.push_back(b);
      const int32_t block_starts[] = {0, kBlocks / 2, kBlocks};
      const KvTables tables{slots.data(), block_starts, blocks.data(), kBlocks};
      executor_.run({.token_ids = tokens.data(),
                     .positions = positions.data(),
                     .query_starts = starts.data(),
                     .context_lens = lens.data(),
                     .groups = {&tables, 1},
                     .logit_rows = rows.data(),
                     .tokens = int(tokens.size()),
                     .sequences = 2,
                     .logits = 2},
                    {});
      for (int r = 0; r < 2; ++r) {
        const float* row = executor_.buffer(logits_).row<float>(r);
        seen.insert(seen.end(), row, row + kVocabulary);
        seen.push_back(float(*executor_.buffer(best_).row<int32_t>(r)));
      }
      move_blocks();
    }
    return seen;
  }

 private:
  static constexpr int kVocabulary = 300, kLatent = 9;

  // Reads all blocks as bytes and writes them where they are; those that are damaged are named.
  void move_blocks() {
    std::vector<int32_t> blocks(kBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<std::byte> bytes(kBlocks * executor_.group_bytes(0));
    const std::vector<uint32_t> sums = executor_.read_blocks(0, blocks, bytes);
    expect(executor_.write_blocks(0, blocks, bytes, sums) == -1, "blocks are as they were read");
    for (const size_t damaged : {bytes.size() - 1, executor_.group_bytes(0) * 3})
      bytes[damaged] ^= std::byte{1};
    expect(executor_.write_blocks(0, blocks, bytes, sums) == 3, "the first damaged block is found");
  }

  // The second layer: a line of mathematics each, and all that attention does to scores.
  void append_apart(BufferId x, BufferId normed, BufferId q, BufferId out) {
    constexpr int kWidth = kKvHeads * kDim;
    const BufferId k = buffer(Elem::f32, kWidth, RowKind::tokens);
    const BufferId v = buffer(Elem::f32, kWidth, RowKind::tokens);
    const Executor::RotationSpec rotation{constant(256 * kDim / 4), constant(256 * kDim / 4),
                                          kDim / 2, true};
    executor_.append_rms_norm(x, normed, constant(kHidden), 1e-5f);
    executor_.append_linear(int_matrix(kHidden, 8), kNone, normed, q, Activation::none);
    executor_.append_linear(int_matrix(kWidth, 4), kNone, normed, k, Activation::none);
    executor_.append_linear(int_matrix(kWidth, 8), kNone, normed, v, Activation::none);
    executor_.append_head_norm(q, q, {kDim, constant(kDim), kNone, 1e-5f});
    executor_.append_rope(q, q, kDim, rotation);
    executor_.append_rope(k, k, kDim, rotation);
    executor_.append_kv_write(1, k, v);
    executor_.append_attention(
        {1, q, out, kHeads, 0.25f, 0, 3.0f, constant(kHeads), constant(kHeads)});
    executor_.append_layer_norm(out, out, constant(kHidden), constant(kHidden), 1e-5f);
    executor_.append_gate(out, q, out, Activation::silu);
    executor_.append_scale(out, out, 0.5f);
    executor_.append_scale_by(out, out, constant(1));
    executor_.append_columns(out, k, kWidth);
    executor_.append_soft_cap(out, out, 2.0f);
    executor_.append_clamp(out, out, 1.0f);
    executor_.append_xielu(out, out, constant(1), constant(1), constant(1), constant(1));
    executor_.append_scale_by_position(out, out, constant(256), 1, 0);
    executor_.append_head_norm(out, out, {kDim, constant(kHidden), kNone, 1e-5f, true, true});
    executor_.append_add_positions(x, x, constant(256 * kHidden), Elem::f32, 256, 0);
    executor_.append_add_activated(x, out, x, Activation::none);
  }

  // The third: a head of queries stands for latents and rotated keys.
  void append_latents(BufferId x, BufferId q, BufferId out) {
    const BufferId keys = buffer(Elem::f32, kDim, RowKind::tokens);
    const BufferId attended = buffer(Elem::f32, kHeads * kLatent, RowKind::tokens);
    const BufferId joined = buffer(Elem::f32, kHidden, RowKind::tokens);
    executor_.append_columns(q, keys, kDim);
    executor_.append_kv_write(2, keys, kNone);
    executor_.append_attention({2, q, attended, kHeads, 0.25f, 0});
    const MatrixId heads =
        executor_.add_matrix(PackedMatrix{Elem::f32, kHidden, kLatent, false, {}, {}});
    const std::vector<float> rows = random(kHidden * kLatent);
    executor_.pack_rows(heads, 0, kHidden, std::as_bytes(std::span(rows)));
    executor_.append_head_linear(heads, kHeads, attended, out);
    executor_.append_join(std::array{out}, joined, kHeads);
    executor_.append_add_activated(x, joined, x, Activation::none);
  }

  // The fourth mixes tokens by a convolution.
  void append_convolution(BufferId x, BufferId q, BufferId out) {
    constexpr int kTaps = 3;
    executor_.append_gate(x, out, q, Activation::identity);
    executor_.append_short_conv(3, q, out, constant(kTaps * kHidden), constant(kHidden), kTaps);
    executor_.append_add_activated(x, out, x, Activation::none);
  }

  // Five experts, of which a token has two: matrices of floats, then of integers.
  void append_experts(BufferId x, BufferId out) {
    constexpr int kExperts = 5, kChosen = 2;
    const RowKind routed{RowBase::tokens, kChosen};
    const BufferId scores = buffer(Elem::f32, kExperts, RowKind::tokens);
    const BufferId ids = buffer(Elem::i32, kChosen, RowKind::tokens);
    const BufferId shares = buffer(Elem::f32, kChosen, RowKind::tokens);
    const BufferId inner = buffer(Elem::f32, kHidden, routed);
    const BufferId outer = buffer(Elem::f32, kHidden, routed);
    executor_.append_linear(matrix(kExperts), kNone, x, scores, Activation::none);
    executor_.append_route(scores, ids, shares, kNone, kNone, {Scores::softmax, true});
    executor_.append_expert_linear(matrix(kHidden, kExperts), constant(kExperts * kHidden), x, ids,
                                   inner, Activation::none);
    executor_.append_scale_rows(inner, shares, inner, true);
    executor_.append_expert_linear(int_matrix(kHidden, 4, kExperts), kNone, inner, ids, outer,
                                   Activation::none);
    executor_.append_combine_experts(outer, shares, out);
    executor_.append_add_activated(x, out, x, Activation::none);
  }

  BufferId buffer(Elem elem, int cols, RowKind rows) {
    const size_t row = size_t(cols * 4 + 63) / 64 * 64;
    const size_t offset = end_;
    end_ += size_t(kTokens * rows.times) * row;
    return executor_.add_buffer(offset, elem, cols, row, rows);
  }

  std::vector<float> random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(rng_) * 0.3f;
    return values;
  }

  ConstantId constant(int64_t count) {
    const std::vector<float> values = random(count);
    return executor_.add_constant(std::as_bytes(std::span(values)));
  }

  MatrixId matrix(int64_t n, int experts = 1) {
    const MatrixId id =
        executor_.add_matrix(PackedMatrix{Elem::f32, n, kHidden, false, {}, {}}, experts);
    for (int e = 0; e < experts; ++e) {
      const std::vector<float> rows = random(n * kHidden);
      executor_.pack_rows(id, e * n, n, std::as_bytes(std::span(rows)));
    }
    return id;
  }

  MatrixId int_matrix(int64_t n, int bits, int experts = 1) {
    const MatrixId id =
        executor_.add_matrix(IntMatrix{bits, 32, n, kHidden, false, {}, {}}, experts);
    for (int e = 0; e < experts; ++e) {
      const std::vector<float> rows = random(n * kHidden);
      std::vector<int8_t> codes(rows.size());
      std::vector<float> scales(rows.size() / 32);
      executor_.round_rows(Elem::f32, std::as_bytes(std::span(rows)), n, kHidden, bits, 32, codes,
                           scales, {});
      executor_.pack_int_rows(id, e * n, n, codes, scales, {});
    }
    return id;
  }

  std::mt19937 rng_{11};
  Executor executor_;
  size_t end_ = 0;
  BufferId logits_, best_;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  for (const int threads : {1, 2, 3, 5})
    for (const bool crowded : {false, true}) {
      Pool pool(threads, {}, crowded);
      check_barrier(pool, rounds);
      check_tickets(pool, rounds);
    }
  for (const Elem kv : {Elem::f32, Elem::bf16, Elem::i8, Elem::i4, Elem::k8v4, Elem::e4m3}) {
    const std::vector<float> alone = Layer(1, false, kv).run(rounds / 10 + 2);
    for (const int threads : {2, 3})
      for (const bool crowded : {false, true})
        expect(Layer(threads, crowded, kv).run(rounds / 10 + 2) == alone,
               "a step's bits do not depend on threads");
  }
  for (const Elem ring : {Elem::f32, Elem::bf16}) {
    const std::vector<float> alone = Recurrences(1, false, ring).run(rounds / 10 + 2);
    for (const int threads : {2, 3})
      for (const bool crowded : {false, true})
        expect(Recurrences(threads, crowded, ring).run(rounds / 10 + 2) == alone,
               "what is read of states does not depend on threads");
  }
  for (const int world : {2, 3, 5})
    for (const int threads : {1, 2})
      for (const bool crowded : {false, true})
        expect(wrong_numbers(world, threads, rounds, crowded) == 0,
               "each rank gathers what all have written");
  std::printf(failures ? "%d checks failed\n" : "passed\n", failures);
  return failures ? 1 : 0;
}
