#include "loads.h"

#include <algorithm>
#include <string>

namespace penstock {

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;

void check_tokens(int64_t tokens) {
  if (tokens < 0 || tokens > kMostTokens)
    throw std::invalid_argument("a request has no " + std::to_string(tokens) + " tokens");
}

// Sums that grow for as long as a router runs wrap around; nothing else of them is undefined then.
int64_t sum(int64_t left, int64_t right) { return int64_t(uint64_t(left) + uint64_t(right)); }

// As Python divides, towards the lesser number.
int64_t grains(int64_t tokens, int64_t grain) {
  return tokens >= 0 ? tokens / grain : -((-(tokens + 1)) / grain) - 1;
}

}  // namespace

LoadBook::LoadBook(const LoadWeights& weights) : weights_(weights) {
  if (weights.grain < 1 || weights.given_grain < 1)
    throw std::invalid_argument("grains are of at least one token");
  if (weights.decode_tokens < 0 || weights.decode_tokens > kMostTokens)
    throw std::invalid_argument("a sequence that decodes counts as at most 2^40 tokens");
}

void LoadBook::join(size_t replica) {
  if (replica >= kMaxReplicas) throw std::invalid_argument("there are too many replicas");
  // One that is new has nothing to make up for.
  const int64_t least = given_.lowest().value_or(0);
  if (replica >= loads_.size()) loads_.resize(replica + 1);
  loads_[replica] = {.joined = true, .given = least * weights_.given_grain};
  work_.put(replica, 0);
  given_.put(replica, least);
  requests_.put(replica, 0);
}

void LoadBook::leave(size_t replica) {
  load(replica).joined = false;
  work_.drop(replica);
  given_.drop(replica);
  requests_.drop(replica);
}

void LoadBook::begin(size_t replica, int64_t tokens) {
  check_tokens(tokens);
  Load& load = this->load(replica);
  ++load.requests;
  load.prefill = sum(load.prefill, tokens);
  load.given = sum(load.given, tokens);
  put_work(replica, load);
  given_.put(replica, grains(load.given, weights_.given_grain));
  requests_.put(replica, load.requests);
}

void LoadBook::prefilled(size_t replica, int64_t tokens) {
  check_tokens(tokens);
  Load& load = this->load(replica);
  load.prefill = sum(load.prefill, -tokens);
  ++load.decoding;
  put_work(replica, load);
}

void LoadBook::end(size_t replica, int64_t tokens) {
  check_tokens(tokens);
  Load& load = this->load(replica);
  --load.requests;
  if (tokens)
    load.prefill = sum(load.prefill, -tokens);
  else
    --load.decoding;
  put_work(replica, load);
  requests_.put(replica, load.requests);
}

void LoadBook::catch_up(size_t replica, const ReplicaSet& others) {
  if (others.empty()) return;
  Load& load = this->load(replica);
  ReplicaSet equal;
  load.given = std::max(load.given, given_.least(others, equal) * weights_.given_grain);
  given_.put(replica, grains(load.given, weights_.given_grain));
}

LoadBook::Load& LoadBook::load(size_t replica) {
  if (replica >= loads_.size() || !loads_[replica].joined)
    throw UnknownReplica("there is no replica " + std::to_string(replica));
  return loads_[replica];
}

const LoadBook::Load& LoadBook::load(size_t replica) const {
  return const_cast<LoadBook*>(this)->load(replica);
}

void LoadBook::put_work(size_t replica, const Load& load) {
  const int64_t decoding = int64_t(uint64_t(weights_.decode_tokens) * uint64_t(load.decoding));
  work_.put(replica, grains(sum(load.prefill, decoding), weights_.grain));
}

}  // namespace penstock
