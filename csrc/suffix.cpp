#include "suffix.h"

#include <algorithm>

#include "refuse.h"

namespace penstock {
namespace {

constexpr int32_t kNone = -1;
constexpr size_t kMostTokens = size_t(1) << 29;  // twice as many states, and three times the edges
constexpr size_t kFirstTable = 64;

uint64_t hash(int32_t state, int32_t token) {
  const uint64_t key = uint64_t(uint32_t(state)) << 32 | uint32_t(token);
  return key * 0x9e3779b97f4a7c15;  // its high bits depend on all of the key
}

}  // namespace

SuffixAutomaton::SuffixAutomaton(int32_t walk) : walk_(walk), table_(kFirstTable, kNone) {
  states_.push_back({0, kNone, 0, 0, 0, kNone});
}

void SuffixAutomaton::extend(std::span<const int32_t> tokens) {
  if (tokens_.size() + tokens.size() > kMostTokens)
    refuse("a suffix automaton takes 2^29 tokens at most");
  for (const int32_t token : tokens) append(token);
}

void SuffixAutomaton::following(std::span<int32_t> out) const {
  const size_t period = tokens_.size() - size_t(match_end_);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = i < period ? tokens_[size_t(match_end_) + i] : out[i - period];
}

std::pair<int32_t, int32_t> SuffixAutomaton::find(std::span<const int32_t> tokens) const {
  int32_t state = 0, length = 0;
  for (const int32_t token : tokens) {
    int32_t next;
    while (!(next = target(state, token)) && state) {
      state = states_[size_t(state)].link;
      length = states_[size_t(state)].length;
    }
    if (next) {
      state = next;
      ++length;
    }
  }
  return length ? std::pair(length, states_[size_t(state)].end) : std::pair(0, 0);
}

void SuffixAutomaton::append(int32_t token) {
  tokens_.push_back(token);
  const int32_t position = int32_t(tokens_.size());
  const int32_t added = int32_t(states_.size());
  states_.push_back({position, 0, position, 0, 0, kNone});
  int32_t state = last_, match = 0;
  while (state >= 0 && !(match = target(state, token))) {
    set(state, token, added);
    state = states_[size_t(state)].link;
  }
  if (state >= 0) {
    if (states_[size_t(match)].length != states_[size_t(state)].length + 1)
      match = split(state, token, match);
    states_[size_t(added)].link = match;
  }
  last_ = added;
  match_length_ = states_[size_t(match)].length;
  match_end_ = match ? states_[size_t(match)].end : 0;
  for (int32_t i = 0; i < walk_ && match > 0; ++i) {
    states_[size_t(match)].end = position;
    match = states_[size_t(match)].link;
  }
}

// Makes a state of those strings of `longer` that `state` and `token` spell.
int32_t SuffixAutomaton::split(int32_t state, int32_t token, int32_t longer) {
  const int32_t shorter = int32_t(states_.size());
  State copy = states_[size_t(longer)];
  copy.length = states_[size_t(state)].length + 1;
  copy.more = kNone;
  states_.push_back(copy);
  for (int32_t e = states_[size_t(longer)].more; e != kNone; e = edges_[size_t(e)].next)
    set(shorter, edges_[size_t(e)].token, edges_[size_t(e)].target);
  states_[size_t(longer)].link = shorter;
  for (; state >= 0 && target(state, token) == longer; state = states_[size_t(state)].link)
    set(state, token, shorter);
  return shorter;
}

int32_t SuffixAutomaton::target(int32_t state, int32_t token) const {
  const State& from = states_[size_t(state)];
  if (from.token == token) return from.target;
  if (from.more == kNone) return 0;
  const int32_t edge = table_[slot(state, token)];
  return edge == kNone ? 0 : edges_[size_t(edge)].target;
}

void SuffixAutomaton::set(int32_t state, int32_t token, int32_t target) {
  State& from = states_[size_t(state)];
  if (!from.target || from.token == token) {
    from.token = token;
    from.target = target;
    return;
  }
  size_t at = slot(state, token);
  if (table_[at] != kNone) {
    edges_[size_t(table_[at])].target = target;
    return;
  }
  if (2 * (edges_.size() + 1) > table_.size()) {
    grow_table();
    at = slot(state, token);
  }
  table_[at] = int32_t(edges_.size());
  edges_.push_back({state, token, target, from.more});
  from.more = table_[at];
}

size_t SuffixAutomaton::slot(int32_t state, int32_t token) const {
  const size_t mask = table_.size() - 1;
  for (size_t at = hash(state, token) >> 32 & mask;; at = (at + 1) & mask) {
    const int32_t edge = table_[at];
    if (edge == kNone) return at;
    if (edges_[size_t(edge)].state == state && edges_[size_t(edge)].token == token) return at;
  }
}

void SuffixAutomaton::grow_table() {
  const size_t size = table_.size() * 2;
  table_.assign(size, kNone);
  for (size_t e = 0; e < edges_.size(); ++e)
    table_[slot(edges_[e].state, edges_[e].token)] = int32_t(e);
}

}  // namespace penstock
