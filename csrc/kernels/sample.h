// Choosing a token from a row of logits. sampling/reference.py is the definition: every choice and
// every log-probability is the same, bit by bit, on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sample_state.h"

namespace penstock {

enum class SampleError : int32_t {
  none,
  not_a_number,
  infinite,
  only_negative_infinite,
  no_token_left,  // the options and the grammar have forbidden all
};

struct Choice {
  int32_t token;  // -1 with an error
  SampleError error;
};

struct RankedToken {
  int32_t id;
  float logit;
};

// What log-probabilities are made of; sampling/logprobs.py does the rest in float64.
struct TokenReport {
  float logit;
  int64_t rank;    // 1 is the largest
  float peak;      // the row's maximum
  int64_t total;   // of the row's weights at temperature 1
  std::vector<RankedToken> top;
};

struct Weigher;  // sample_weights.h

// One thread's scratch memory. Rows are [vocabulary] float32 and only read; what a row gives depends
// on that row alone.
class RowSampler {
 public:
  explicit RowSampler(int64_t vocabulary);

  // `mask`: what the sequence's grammar allows next, a bit a token, the lowest of a word first;
  // null allows all.
  Choice choose(const float* logits, const SampleState& state, const uint32_t* mask = nullptr);
  // Of `token` and of the `count` largest, the largest first.
  TokenReport report(const float* logits, int32_t token, int count);

 private:
  struct Cutoff {
    int64_t weight;  // the smallest that is kept
    int64_t ties;    // how many of those equal to it are kept
  };

  int32_t draw(const float* logits, float peak, const SampleState& state);
  int64_t weigh(const float* logits, const Weigher& weigher, bool keep);
  int32_t pick_from_row(const float* logits, const Weigher& weigher, int64_t total,
                        uint64_t bits) const;
  void find_top(const float* logits, int64_t count);
  int64_t weigh_top(const float* logits, const Weigher& weigher);
  int64_t collect(int64_t least, int64_t most);
  Cutoff row_cutoff(int64_t total, int64_t target);
  Cutoff cutoff(int64_t target);
  void drop_below(const Cutoff& cut);
  int32_t pick(uint64_t bits) const;

  int64_t vocabulary_;
  // Sized for the worst, so that kernels never allocate; what a row does not touch takes no memory.
  std::unique_ptr<float[]> row_;              // logits, changed by the state's options
  std::vector<float> group_peaks_, order_;    // of logits
  std::vector<RankedToken> top_;
  std::unique_ptr<float[]> row_weights_;      // their whole parts are the weights
  std::vector<int64_t> group_sums_, group_largest_;  // of weights
  std::vector<int64_t> bucket_sums_;
  // The tokens that can still be chosen: the first `candidates_` entries, in ascending order of id.
  size_t candidates_ = 0;
  std::unique_ptr<int32_t[]> ids_;
  std::unique_ptr<int64_t[]> weights_;
  std::vector<int64_t> values_;
};

}  // namespace penstock
