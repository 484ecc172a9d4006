// A vocabulary of byte pairs: its entries by their text, and how words are put together from them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

// Strings one behind another, and where each ends.
struct Strings {
  std::string_view text;
  std::span<const int64_t> ends;

  // Throws std::invalid_argument unless all ends lie in the text, in order, and the last at its end.
  void check() const;

  size_t size() const { return ends.size(); }
  std::string_view operator[](size_t i) const {
    const size_t start = i == 0 ? 0 : size_t(ends[i - 1]);
    return text.substr(start, size_t(ends[i]) - start);
  }
};

// How a word's characters become its first tokens.
struct Spelling {
  bool bytes = false;          // each byte is a printable character, as GPT-2 has it
  bool marks_spaces = false;   // a space is U+2581
  bool space_first = false;    // and each word has one put before it
  bool byte_fallback = false;  // a character without a token is spelled <0xE9>
  int32_t unknown = -1;        // the token of characters that have none otherwise; -1: they have none
  bool whole_words_first = false;  // a word that is an entry is that token, whatever merges make of it
};

// What texts are cut into by penstock/tokenizer/gguf_vocab.py, id for id what the tokenizers library
// makes of the same vocabulary and merges: of all neighbours that merge, those of the lowest rank do
// first, and of those of one rank the leftmost. Immutable; threads may share it.
//
// Entries are found by a hash table over their text, which takes 8 to 16 bytes an entry.
class BytePairs {
 public:
  // Merges are pairs of entries with a space between them, the first to merge first.
  //
  // Throws std::invalid_argument for entries that are not distinct, and for a merge that is no pair
  // or of which a part or the whole is no entry.
  BytePairs(Strings entries, Strings merges, Spelling spelling);

  // Any two neighbours merge that are an entry together, the entry of the lowest rank first, and of
  // one entry the merge with the shortest left part. Entries of rank -1 neither merge nor are made.
  BytePairs(Strings entries, std::span<const int32_t> ranks, Spelling spelling);

  size_t size() const { return starts_.size() - 1; }
  // Most bytes, and most characters, of an entry.
  size_t most_bytes() const { return most_bytes_; }
  size_t most_chars() const { return most_chars_; }

  std::string_view entry(size_t token) const {
    return {text_.data() + starts_[token], starts_[token + 1] - starts_[token]};
  }
  // The entry of this text; -1: there is none.
  int32_t find(std::string_view text) const;

  // What encoding needs beside the word, of one call after the other.
  class Scratch;

  // Append the tokens of a word, which is valid UTF-8.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const;

 private:
  struct Merge {
    uint64_t rank;
    int32_t made;  // -1: the two do not merge
  };
  struct Pair {
    uint64_t parts;  // left << 32 | right; all ones: free
    int32_t rank, made;
  };
  struct Symbol {
    int32_t token;
    int32_t before, after;  // -1: none
    uint32_t start, size;   // its text within the word; no size: it was merged into its neighbour
  };

  BytePairs(Strings entries, Spelling spelling);
  BytePairs(const BytePairs&) = delete;
  int32_t find_padded(std::string_view text) const;
  void add_pair(uint64_t parts, int32_t rank, int32_t made);
  Merge merge_of(std::string_view word, const Symbol& left, const Symbol& right) const;
  void spell(std::string_view word, std::string& spelled) const;
  // Characters that have no token at all are taken out of the text, so that what stood on either side of
  // them is merged as neighbours, as the library does; returns the bytes that are left.
  size_t first_symbols(std::string& spelled, size_t bytes, std::vector<Symbol>& symbols) const;
  void merge(std::string_view word, Scratch& scratch) const;

  Spelling spelling_;
  std::string text_;              // all entries, padded
  std::vector<uint32_t> starts_;  // of each entry, and where the last ends
  size_t most_bytes_ = 0, most_chars_ = 0;
  uint64_t seed_;                 // nobody can make up entries that all have one place in the table
  std::vector<uint64_t> table_;   // upper half of the hash, and token + 1; 0: free
  std::vector<int32_t> ranks_;    // of entries; empty where pairs are listed
  std::vector<Pair> pairs_;       // by open addressing
  int32_t byte_tokens_[256];      // <0x00> to <0xFF>; -1: no entry
  int32_t ascii_tokens_[128];     // of single characters, likewise
};

class BytePairs::Scratch {
  friend class BytePairs;
  struct Waiting {
    uint64_t rank;
    int32_t at, made;
    uint32_t size;  // of both parts, when this was found
    bool operator>(const Waiting& other) const {
      return std::pair(rank, at) > std::pair(other.rank, other.at);
    }
  };
  std::string spelled;
  std::vector<Symbol> symbols;
  std::vector<Waiting> queue;  // a heap, the next to merge first
};

}  // namespace penstock
