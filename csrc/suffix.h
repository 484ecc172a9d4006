// A text that grows, and where its end occurred before.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace penstock {

// A suffix automaton; what it tells is defined by penstock/speculate/suffix.py, value for value.
//
// Most states have one edge, which is in the state itself; further ones are in one table for all
// states, by state and token, and in a list for each state, since states are copied.
// Appending takes 0.1 us while it fits the caches, and at most 120 bytes a token.
class SuffixAutomaton {
 public:
  explicit SuffixAutomaton(int32_t walk);

  // Throws std::invalid_argument beyond 2^29 tokens.
  void extend(std::span<const int32_t> tokens);

  std::span<const int32_t> tokens() const { return tokens_; }
  // Of the longest suffix that occurred before: its tokens, and where it ended; 0 without a match.
  int32_t match_length() const { return match_length_; }
  int32_t match_end() const { return match_end_; }

  // `out.size()` tokens that came after the match, which repeats itself where the text ends.
  // There must be a match.
  void following(std::span<int32_t> out) const;

  // The longest suffix of `tokens` in the text: its length and where it ended last; {0, 0}: none.
  std::pair<int32_t, int32_t> find(std::span<const int32_t> tokens) const;

 private:
  // No edge leads to the root, which is state 0: as a target, it stands for none.
  struct State {
    int32_t length, link, end;
    int32_t token, target;  // its first edge
    int32_t more;           // of its further edges, the newest; -1: none
  };
  struct Edge {
    int32_t state, token, target, next;
  };

  void append(int32_t token);
  int32_t split(int32_t state, int32_t token, int32_t longer);
  int32_t target(int32_t state, int32_t token) const;
  void set(int32_t state, int32_t token, int32_t target);
  size_t slot(int32_t state, int32_t token) const;  // where the table has it, or has room for it
  void grow_table();

  int32_t walk_;
  int32_t last_ = 0;
  int32_t match_length_ = 0, match_end_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // indices of edges, by open addressing; -1: free
};

}  // namespace penstock
