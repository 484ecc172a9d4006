#include "sample_state.h"

#include <limits>
#include <stdexcept>
#include <utility>

namespace penstock {
namespace {

// sampling/draws.py has the source of these constants.
uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

void check(const SampleOptions& o) {
  if (o.vocabulary < 1 || o.vocabulary > kMostVocabulary)
    throw std::invalid_argument("a vocabulary has 1 to 2^22 tokens");
  // Written so that NaN is refused.
  if (!(o.temperature >= 0 && o.temperature <= std::numeric_limits<double>::max()))
    throw std::invalid_argument("a temperature is a number, 0 or more");
  if (o.last && *o.last < -1)
    throw std::invalid_argument("penalties look at a number of last tokens, or at all: -1");
  if (!(o.top_p > 0 && o.top_p <= 1) || !(o.min_p >= 0 && o.min_p <= 1))
    throw std::invalid_argument("top_p is in (0, 1] and min_p in [0, 1]");
}

void check(int32_t token, int64_t vocabulary) {
  if (token < 0 || token >= vocabulary)
    throw std::invalid_argument("a token lies outside the vocabulary");
}

}  // namespace

void TokenCounts::add(int32_t token) {
  const auto [at, is_new] = place_.try_emplace(token, ids_.size());
  if (!is_new) {
    ++counts_[at->second];
    return;
  }
  ids_.push_back(token);
  counts_.push_back(1);
}

void TokenCounts::remove(int32_t token) {
  const auto found = place_.find(token);
  const size_t at = found->second;
  if (--counts_[at] > 0) return;
  // The last one takes its place.
  place_[ids_.back()] = at;
  ids_[at] = ids_.back();
  counts_[at] = counts_.back();
  ids_.pop_back();
  counts_.pop_back();
  place_.erase(token);
}

SampleState::SampleState(const SampleOptions& options, std::vector<TokenBias> biases,
                         std::vector<int32_t> ending, const std::vector<int32_t>& prompt)
    : options_(options),
      biases_(std::move(biases)),
      ending_(std::move(ending)),
      penalizes_seen_(options.repetition != 1.0f && options.last != 0),
      penalizes_output_((options.frequency != 0.0f || options.presence != 0.0f) && options.last != 0),
      looks_back_(penalizes_seen_ || (penalizes_output_ && options.last)) {
  check(options);
  for (const TokenBias& b : biases_) check(b.token, options.vocabulary);
  for (const int32_t token : ending_) check(token, options.vocabulary);
  for (const int32_t token : prompt) {
    check(token, options.vocabulary);
    if (looks_back_) see(token);
  }
}

void SampleState::see(int32_t token) {
  seen_.add(token);
  if (options_.last.value_or(-1) < 0) return;
  recent_.push_back(token);
  if (int64_t(recent_.size()) <= *options_.last) return;
  seen_.remove(recent_.front());
  recent_.pop_front();
}

bool SampleState::greedy() const {
  return options_.temperature == 0.0 && !options_.constrained && biases_.empty() && ending_.empty() && !penalizes_seen_ &&
         !penalizes_output_;
}

bool SampleState::changes_logits() const {
  return !biases_.empty() || penalizes_seen_ || penalizes_output_ || too_short();
}

void SampleState::apply(float* logits) const {
  for (const TokenBias& b : biases_) logits[b.token] += b.bias;
  if (too_short())
    for (const int32_t token : ending_) logits[token] = -std::numeric_limits<float>::infinity();
  if (penalizes_seen_)
    for (const int32_t token : seen_.ids()) {
      float& value = logits[token];
      value = value > 0 ? value / options_.repetition : value * options_.repetition;
    }
  if (!penalizes_output_) return;
  const TokenCounts& counted = options_.last ? seen_ : output_;
  for (size_t i = 0; i < counted.ids().size(); ++i) {
    const float taken = options_.frequency * float(counted.counts()[i]);
    logits[counted.ids()[i]] -= taken + options_.presence;
  }
}

uint64_t SampleState::draw() const {
  return mix64(options_.key + (uint64_t(num_output_) + 1) * 0x9E3779B97F4A7C15u);
}

void SampleState::append(int32_t token) {
  check(token, options_.vocabulary);
  ++num_output_;
  if (looks_back_) see(token);
  if (penalizes_output_ && !options_.last) output_.add(token);
}

}  // namespace penstock
