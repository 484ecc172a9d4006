#include "byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>

namespace penstock {

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581
constexpr uint64_t kFree = ~uint64_t{0};
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;

// Bytes of the character that begins with this one.
size_t char_bytes(char first) {
  const auto byte = uint8_t(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

size_t count_chars(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(),
                              [](char each) { return (uint8_t(each) & 0xC0) != 0x80; }));
}

// The printable characters that stand for bytes (penstock/tokenizer/pieces.py), as UTF-8.
struct Alphabet {
  char text[256][2];
  uint8_t size[256];

  Alphabet() {
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                             (byte >= 0xAE && byte <= 0xFF);
      const int code = printable ? byte : next++;
      size[byte] = code < 0x80 ? 1 : 2;
      text[byte][0] = char(code < 0x80 ? code : 0xC0 | code >> 6);
      text[byte][1] = char(0x80 | (code & 0x3F));
    }
  }
};

size_t slots_for(size_t count) { return std::bit_ceil(std::max<size_t>(2 * count, 16)); }

uint64_t mixed(uint64_t value) {
  value *= kMultiplier;
  return value ^ (value >> 32);
}

// Texts that are hashed and compared are followed by so many bytes that may be read: by the word, as
// is done here, that takes half the time that calls of memcpy and memcmp do.
constexpr size_t kPadding = 8;

// The first bytes of a text, of at most eight, and zeros.
uint64_t word_of(const char* text, size_t bytes) {
  uint64_t word;
  std::memcpy(&word, text, 8);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return bytes >= 8 ? word : word & ((uint64_t{1} << 8 * bytes) - 1);
}

uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t code = seed ^ text.size();
  for (size_t at = 0; at < text.size(); at += 8)
    code = mixed(code ^ word_of(text.data() + at, text.size() - at));
  return mixed(code);
}

bool same(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t at = 0; at < a.size(); at += 8)
    if (word_of(a.data() + at, a.size() - at) != word_of(b.data() + at, a.size() - at))
      return false;
  return true;
}

}  // namespace

void Strings::check() const {
  int64_t before = 0;
  for (const int64_t end : ends) {
    if (end < before) throw std::invalid_argument("a string ends before it begins");
    before = end;
  }
  if (size_t(before) != text.size()) throw std::invalid_argument("strings do not fill their text");
}

BytePairs::BytePairs(Strings entries, Spelling spelling)
    : spelling_(spelling),
      text_(entries.text),
      seed_(uint64_t{std::random_device{}()} << 32 | std::random_device{}()),
      table_(slots_for(entries.size())) {
  entries.check();
  if (entries.size() >= size_t(INT32_MAX) || text_.size() >= size_t(INT32_MAX) ||
      spelling.unknown >= int64_t(entries.size()))
    throw std::invalid_argument("too many entries, or none for what is unknown");
  text_.append(kPadding, '\0');
  starts_.assign(1, 0);
  starts_.insert(starts_.end(), entries.ends.begin(), entries.ends.end());
  const size_t mask = table_.size() - 1;
  for (size_t token = 0; token < size(); ++token) {
    const std::string_view text = entry(token);
    most_bytes_ = std::max(most_bytes_, text.size());
    most_chars_ = std::max(most_chars_, count_chars(text));
    const uint64_t code = hash(text, seed_);
    size_t slot = code & mask;
    while (table_[slot] != 0) {
      if (table_[slot] >> 32 == code >> 32 && same(entry(uint32_t(table_[slot]) - 1), text))
        throw std::invalid_argument("two entries are the same");
      slot = (slot + 1) & mask;
    }
    table_[slot] = (code >> 32) << 32 | (token + 1);
  }
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", unsigned(byte));
    byte_tokens_[byte] = find(name);
  }
  for (int code = 0; code < 128; ++code) {
    const char text = char(code);
    ascii_tokens_[code] = find({&text, 1});
  }
}

BytePairs::BytePairs(Strings entries, Strings merges, Spelling spelling)
    : BytePairs(entries, spelling) {
  merges.check();
  pairs_.assign(slots_for(merges.size()), Pair{kFree, 0, -1});
  std::string whole;
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    const size_t at = merge.find(' ', 1);
    if (at == std::string_view::npos || at + 1 == merge.size())
      throw std::invalid_argument("a merge is no pair");
    const std::string_view left = merge.substr(0, at), right = merge.substr(at + 1);
    whole.assign(left).append(right);
    const int32_t parts[] = {find(left), find(right), find(whole)};
    if (std::min({parts[0], parts[1], parts[2]}) < 0)
      throw std::invalid_argument("a part of a merge is no entry");
    add_pair(uint64_t(uint32_t(parts[0])) << 32 | uint32_t(parts[1]), int32_t(i), parts[2]);
  }
}

BytePairs::BytePairs(Strings entries, std::span<const int32_t> ranks, Spelling spelling)
    : BytePairs(entries, spelling) {
  if (ranks.size() != size())
    throw std::invalid_argument("there is no rank for each entry");
  ranks_.assign(ranks.begin(), ranks.end());
}

int32_t BytePairs::find(std::string_view text) const {
  if (text.size() > most_bytes_) return -1;
  std::string padded(text);
  padded.append(kPadding, '\0');
  return find_padded({padded.data(), text.size()});
}

int32_t BytePairs::find_padded(std::string_view text) const {
  if (text.size() > most_bytes_) return -1;
  const uint64_t code = hash(text, seed_);
  const size_t mask = table_.size() - 1;
  for (size_t slot = code & mask; table_[slot] != 0; slot = (slot + 1) & mask)
    if (table_[slot] >> 32 == code >> 32 && same(entry(uint32_t(table_[slot]) - 1), text))
      return int32_t(uint32_t(table_[slot]) - 1);
  return -1;
}

void BytePairs::add_pair(uint64_t parts, int32_t rank, int32_t made) {
  const size_t mask = pairs_.size() - 1;
  size_t slot = mixed(parts ^ seed_) & mask;
  while (pairs_[slot].parts != kFree) {
    if (pairs_[slot].parts == parts) return;  // of a merge that stands there twice, the first counts
    slot = (slot + 1) & mask;
  }
  pairs_[slot] = {parts, rank, made};
}

BytePairs::Merge BytePairs::merge_of(std::string_view word, const Symbol& left,
                                     const Symbol& right) const {
  if (ranks_.empty()) {
    const uint64_t parts = uint64_t(uint32_t(left.token)) << 32 | uint32_t(right.token);
    const size_t mask = pairs_.size() - 1;
    for (size_t slot = mixed(parts ^ seed_) & mask; pairs_[slot].parts != kFree;
         slot = (slot + 1) & mask)
      if (pairs_[slot].parts == parts) return {uint64_t(pairs_[slot].rank), pairs_[slot].made};
    return {0, -1};
  }
  if (ranks_[size_t(left.token)] < 0 || ranks_[size_t(right.token)] < 0) return {0, -1};
  const int32_t made = find_padded({word.data() + left.start, left.size + right.size});
  if (made < 0 || ranks_[size_t(made)] < 0) return {0, -1};
  return {uint64_t(ranks_[size_t(made)]) << 32 | left.size, made};
}

void BytePairs::spell(std::string_view word, std::string& spelled) const {
  spelled.clear();
  if (spelling_.bytes) {
    static const Alphabet alphabet;
    for (const char each : word)
      spelled.append(alphabet.text[uint8_t(each)], alphabet.size[uint8_t(each)]);
    return;
  }
  if (spelling_.space_first) spelled += kSpace;
  for (const char each : word) {
    if (each == ' ' && spelling_.marks_spaces)
      spelled += kSpace;
    else
      spelled += each;
  }
}

size_t BytePairs::first_symbols(std::string& spelled, size_t bytes,
                                std::vector<Symbol>& symbols) const {
  symbols.clear();
  const std::string_view word(spelled.data(), bytes);
  size_t kept = 0;
  const auto add = [&](int32_t token, size_t start, size_t size) {
    if (start != kept) std::memmove(spelled.data() + kept, spelled.data() + start, size);
    symbols.push_back({token, 0, 0, uint32_t(kept), uint32_t(size)});
    kept += size;
  };
  // What is unknown is added once the next character is: so does the library, and what is spelled by
  // bytes in between comes first.
  size_t unknown_start = 0, unknown_size = 0;
  const auto add_unknown = [&] {
    if (unknown_size != 0) add(spelling_.unknown, unknown_start, unknown_size);
    unknown_size = 0;
  };
  for (size_t at = 0, size; at < word.size(); at += size) {
    size = std::min(char_bytes(word[at]), word.size() - at);
    const std::string_view each = word.substr(at, size);
    if (const int32_t token = size == 1 ? ascii_tokens_[uint8_t(each[0]) & 0x7F] : find_padded(each);
        token >= 0) {
      add_unknown();
      add(token, at, size);
      continue;
    }
    if (spelling_.byte_fallback &&
        std::all_of(each.begin(), each.end(),
                    [&](char byte) { return byte_tokens_[uint8_t(byte)] >= 0; })) {
      for (size_t i = 0; i < size; ++i) add(byte_tokens_[uint8_t(each[i])], at + i, 1);
      continue;
    }
    if (spelling_.unknown >= 0) {
      add_unknown();
      unknown_start = at, unknown_size = size;
    }
  }
  add_unknown();
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].before = int32_t(i) - 1;
    symbols[i].after = i + 1 < symbols.size() ? int32_t(i) + 1 : -1;
  }
  std::fill_n(spelled.begin() + ptrdiff_t(kept), kPadding, '\0');
  return kept;
}

void BytePairs::merge(std::string_view word, Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Scratch::Waiting>& queue = scratch.queue;
  queue.clear();
  const auto waiting = [&](int32_t at) {
    const Symbol& left = symbols[size_t(at)];
    const Merge found = merge_of(word, left, symbols[size_t(left.after)]);
    const uint32_t size = left.size + symbols[size_t(left.after)].size;
    if (found.made >= 0) queue.push_back({found.rank, at, found.made, size});
    return found.made >= 0;
  };
  const auto offer = [&](int32_t at) {
    if (waiting(at)) std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) waiting(int32_t(i));
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const Scratch::Waiting next = queue.back();
    queue.pop_back();
    Symbol& left = symbols[size_t(next.at)];
    if (left.size == 0 || left.after < 0) continue;
    Symbol& right = symbols[size_t(left.after)];
    if (left.size + right.size != next.size) continue;  // one of them has merged since
    left.token = next.made;
    left.size += right.size;
    left.after = right.after;
    right.size = 0;
    if (left.after >= 0) symbols[size_t(left.after)].before = next.at;
    if (left.before >= 0) offer(left.before);
    if (left.after >= 0) offer(next.at);
  }
}

void BytePairs::encode(std::string_view word, Scratch& scratch,
                       std::vector<int32_t>& tokens) const {
  spell(word, scratch.spelled);
  const size_t bytes = scratch.spelled.size();
  scratch.spelled.append(kPadding, '\0');
  if (spelling_.whole_words_first) {
    if (const int32_t token = find_padded({scratch.spelled.data(), bytes}); token >= 0) {
      tokens.push_back(token);
      return;
    }
  }
  const size_t kept = first_symbols(scratch.spelled, bytes, scratch.symbols);
  merge({scratch.spelled.data(), kept}, scratch);
  for (const Symbol& each : scratch.symbols)
    if (each.size != 0) tokens.push_back(each.token);
}

}  // namespace penstock
