// An executor of layers that keep states, whose steps are compared at different numbers of threads.
#pragma once

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "../executor.h"

namespace penstock {

// Recurrences and a convolution over states, which lag behind: with snapshots and copies.
class Recurrences {
 public:
  static constexpr int kTokens = 24, kHeads = 4, kDim = 16, kKeys = 2 * kDim, kLog = 2;
  static constexpr int kQkv = 2 * kKeys + kHeads * kDim, kColumns = kQkv + 2 * kHeads;

  Recurrences(int threads, bool crowded, Elem ring)
      : executor_({threads, {}, crowded, 0, kTokens, kTokens, 4, 256, 8, size_t(kTokens) * 8192,
                   Elem::f32},
                  {}, slots(ring)) {
    const BufferId x = buffer(kQkv), ba = buffer(2 * kHeads), mixed = buffer(kQkv);
    const BufferId dt = buffer(kHeads), out = buffer(kHeads * kDim);
    out_ = buffer(kHeads * kDim);
    executor_.append_features(x, 0);
    executor_.append_features(ba, kQkv);
    executor_.append_columns(ba, dt, kHeads);
    executor_.append_state_conv({0, x, mixed, constant(4 * kQkv), constant(kQkv), 4, true});
    executor_.append_gated_delta({0, mixed, ba, out, constant(kHeads), constant(kHeads), 2, false});
    executor_.append_selective_scan({1, mixed, dt, out_, constant(kHeads), constant(kHeads),
                                     constant(kHeads), 2, 0.0f, 10.0f});
    executor_.append_gated_norm({out_, out, out_, constant(kDim), 1e-5f, kDim, true, false});
  }

  std::vector<float> run(int steps) {
    std::vector<float> seen_values;
    int32_t lens[2] = {0, 0}, seen[2] = {0, 0};
    for (int step = 0; step < steps; ++step) {
      int32_t starts[3] = {0, 0, 0}, tentative[2];
      const int32_t slots[2] = {step % 2, 4 - step % 2};  // of which the others are copies
      const int32_t copies[4] = {1 - step % 2, step % 2, 3 + step % 2, 4 - step % 2};
      std::vector<int32_t> positions;
      std::vector<float> features;
      for (int s = 0; s < 2; ++s) {
        const int count = step == 0 ? kTokens / 2 - 3 * s : 2;
        for (int i = 0; i < count; ++i) positions.push_back(lens[s]++);
        starts[s + 1] = starts[s] + count;
        tentative[s] = (step + s) % (kLog + 1);
      }
      const int tokens = starts[2];
      std::normal_distribution<float> normal;
      for (int i = 0; i < tokens * kColumns; ++i) features.push_back(normal(rng_));
      const Snapshot snapshot{1, lens[1] - tentative[1], 2};
      const bool taken = snapshot.tokens > seen[1];
      const std::vector<int32_t> ids(size_t(tokens), 0);
      StepView view{.token_ids = ids.data(),
                    .positions = positions.data(),
                    .query_starts = starts,
                    .context_lens = lens,
                    .groups = {},
                    .logit_rows = nullptr,
                    .tokens = tokens,
                    .sequences = 2,
                    .logits = 0,
                    .features = features.data(),
                    .feature_cols = kColumns};
      view.states = {slots, seen, tentative, {&snapshot, size_t(taken)}};
      executor_.run(view, {{}, {}, copies});
      for (int s = 0; s < 2; ++s) seen[s] = lens[s] - tentative[s];
      const Array& out = executor_.buffer(out_);
      for (int row = 0; row < tokens; ++row)
        seen_values.insert(seen_values.end(), out.row<float>(row), out.row<float>(row) + out.cols);
    }
    return seen_values;
  }

 private:
  static StateSlots slots(Elem ring) {
    const size_t tiles = size_t(kHeads) * kDim * kTileColumns * sizeof(float);
    const size_t log = tiles + size_t(3 + kLog) * kQkv * sizeof(float), whole = log + kLog * 1024;
    const StateGeometry at{0, kHeads, kDim, kDim, tiles, 3 + kLog, kQkv, log, 256};
    StateGeometry other = at;
    for (size_t* place : {&other.tiles, &other.ring, &other.log}) *place += whole;
    return {5, kLog, 2 * whole, ring, {at, other}};
  }

  BufferId buffer(int cols) {
    const size_t row = size_t(cols * 4 + 63) / 64 * 64, offset = end_;
    end_ += size_t(kTokens) * row;
    return executor_.add_buffer(offset, Elem::f32, cols, row, RowKind::tokens);
  }

  ConstantId constant(int count) {
    std::normal_distribution<float> normal;
    std::vector<float> values;
    for (int i = 0; i < count; ++i) values.push_back(normal(rng_) * 0.5f);
    return executor_.add_constant(std::as_bytes(std::span(values)));
  }

  std::mt19937 rng_{5};
  Executor executor_;
  size_t end_ = 0;
  BufferId out_;
};

}  // namespace penstock
