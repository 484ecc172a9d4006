// What sampling must know about one sequence: sampling/sequence.py, natively.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace penstock {

// So that weights of a whole row, 2^40 at most each, sum to what an int64_t holds.
constexpr int64_t kMostVocabulary = int64_t(1) << 22;

struct SampleOptions {
  int64_t vocabulary;
  uint64_t key;  // of the sequence's random draws; sampling/draws.py
  double temperature;
  int64_t top_k;  // 0 or less keeps all
  double top_p;
  double min_p;
  float repetition;
  float frequency;
  float presence;
  std::optional<int64_t> last;  // tokens of prompt and output that penalties look at; -1: all
  int64_t min_tokens;
  int logprobs;  // -1: none wanted
  bool constrained;  // by a grammar, whose mask comes with each row
};

// Distinct token ids, and how often each came.
class TokenCounts {
 public:
  void add(int32_t token);
  void remove(int32_t token);  // takes back one add()
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<int32_t>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, size_t> place_;
  std::vector<int32_t> ids_, counts_;
};

struct TokenBias {
  int32_t token;
  float bias;
};

// A function of prompt, output and options only. Token ids outside the vocabulary, and options that
// sampling/params.py refuses and no weights can be made of, throw std::invalid_argument.
class SampleState {
 public:
  // `ending` are the tokens that min_tokens forbids at first; `prompt`'s order matters to
  // `options.last` alone.
  SampleState(const SampleOptions& options, std::vector<TokenBias> biases,
              std::vector<int32_t> ending, const std::vector<int32_t>& prompt);

  const SampleOptions& options() const { return options_; }
  // The largest logit is chosen, and neither options nor a grammar ever change the logits.
  bool greedy() const;
  // Whether apply() would do anything for the next token.
  bool changes_logits() const;
  // Logit bias, minimum length and penalties, in place on a row.
  void apply(float* logits) const;
  // The uniform 64-bit integer that decides the next token.
  uint64_t draw() const;
  void append(int32_t token);
  int64_t num_output() const { return num_output_; }

 private:
  void see(int32_t token);  // what penalties know of it
  bool too_short() const { return num_output_ < options_.min_tokens && !ending_.empty(); }

  SampleOptions options_;
  std::vector<TokenBias> biases_;
  std::vector<int32_t> ending_;
  bool penalizes_seen_, penalizes_output_;
  bool looks_back_;  // at seen_, which has what all penalties look at where there is options_.last
  TokenCounts seen_, output_;
  std::deque<int32_t> recent_;  // what is in seen_, the oldest first, where that is not all
  int64_t num_output_ = 0;
};

}  // namespace penstock
