// The extension module penstock.gguf._vocabulary.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "byte_pairs.h"

namespace {

namespace nb = nanobind;
using namespace nb::literals;
using penstock::BytePairs;
using penstock::Spelling;
using penstock::Strings;

using Ends = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = std::vector<std::pair<int64_t, int64_t>>;

Strings strings(const nb::bytes& text, const Ends& ends) {
  return {{text.c_str(), text.size()}, {ends.data(), ends.size()}};
}

std::string_view utf8(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) throw nb::python_error();
  return {data, size_t(size)};
}

// Turns offsets in characters, which only grow, into offsets in bytes.
class Cursor {
 public:
  Cursor(std::string_view text, size_t chars)
      : text_(text), same_(chars == text.size()) {}

  size_t byte(int64_t offset) {
    if (offset < 0 || (same_ && size_t(offset) > text_.size())) bad();
    if (same_) return size_t(offset);
    if (size_t(offset) < chars_) chars_ = bytes_ = 0;
    for (; chars_ < size_t(offset); ++chars_) {
      if (bytes_ >= text_.size()) bad();
      do ++bytes_;
      while (bytes_ < text_.size() && (uint8_t(text_[bytes_]) & 0xC0) == 0x80);
    }
    return bytes_;
  }

 private:
  [[noreturn]] static void bad() { throw std::invalid_argument("a word ends behind the text"); }

  std::string_view text_;
  bool same_;
  size_t chars_ = 0, bytes_ = 0;
};

std::vector<int32_t> encode(const BytePairs& self, const nb::str& text,
                            const std::vector<int32_t>& kinds, const Offsets& offsets,
                            const Ints& tokens) {
  const std::string_view whole = utf8(text);
  const size_t chars = size_t(PyUnicode_GetLength(text.ptr()));
  if (kinds.size() != offsets.size()) throw std::invalid_argument("each word has a kind");
  const std::span<const int32_t> known(tokens.data(), tokens.size());
  std::vector<int32_t> found;
  const nb::gil_scoped_release others_may_run;
  found.reserve(whole.size() / 3);
  Cursor cursor(whole, chars);
  BytePairs::Scratch scratch;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] < 0 || size_t(kinds[i]) >= known.size())
      throw std::invalid_argument("there is no such kind of words");
    if (const int32_t token = known[size_t(kinds[i])]; token >= 0) {
      found.push_back(token);
      continue;
    }
    const size_t start = cursor.byte(offsets[i].first), end = cursor.byte(offsets[i].second);
    if (end < start) throw std::invalid_argument("a word ends before it begins");
    self.encode(whole.substr(start, end - start), scratch, found);
  }
  return found;
}

// The bytes of an object while this lives.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&buffer_); }
  Buffer(const Buffer&) = delete;

  std::string_view bytes() const {
    return {static_cast<const char*>(buffer_.buf), size_t(buffer_.len)};
  }

 private:
  Py_buffer buffer_;
};

// As many strings, each of which follows its size in eight bytes, from offset `at` on: their text
// one behind another, where each ends in it, as int64, and the offset behind them. None where they
// end behind `end`, or one begins within a character.
nb::object read_strings(nb::handle data, size_t at, size_t end, size_t count) {
  const Buffer buffer(data);
  const std::string_view bytes = buffer.bytes().substr(0, end);
  if (at > bytes.size() || count > (bytes.size() - at) / 8) return nb::none();
  std::vector<int64_t> ends;
  ends.reserve(count);
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    uint64_t size = 0;
    if (bytes.size() - at < 8) return nb::none();
    for (size_t byte = 0; byte < 8; ++byte) size |= uint64_t(uint8_t(bytes[at + byte])) << 8 * byte;
    at += 8;
    if (size > bytes.size() - at) return nb::none();
    if (size != 0 && (uint8_t(bytes[at]) & 0xC0) == 0x80) return nb::none();
    text.append(bytes.substr(at, size));
    at += size;
    ends.push_back(int64_t(text.size()));
  }
  return nb::make_tuple(nb::bytes(text.data(), text.size()),
                        nb::bytes(reinterpret_cast<const char*>(ends.data()), 8 * ends.size()), at);
}

}  // namespace

NB_MODULE(_vocabulary, m) {
  m.def("read_strings", &read_strings, "data"_a, "at"_a, "end"_a, "count"_a);
  nb::class_<BytePairs>(m, "BytePairs")
      .def_static(
          "by_merges",
          [](const nb::bytes& text, const Ends& ends, const nb::bytes& merges,
             const Ends& merge_ends, bool spelled_bytes, bool whole_words_first) {
            return new BytePairs(strings(text, ends), strings(merges, merge_ends),
                                 Spelling{.bytes = spelled_bytes,
                                          .marks_spaces = !spelled_bytes,
                                          .byte_fallback = !spelled_bytes,
                                          .whole_words_first = whole_words_first});
          },
          "text"_a, nb::arg("ends").noconvert(), "merges"_a, nb::arg("merge_ends").noconvert(),
          "spelled_bytes"_a, "whole_words_first"_a)
      .def_static(
          "by_rank",
          [](const nb::bytes& text, const Ends& ends, const Ints& ranks, int32_t unknown,
             bool space_first) {
            return new BytePairs(strings(text, ends), {ranks.data(), ranks.size()},
                                 Spelling{.marks_spaces = true,
                                          .space_first = space_first,
                                          .byte_fallback = true,
                                          .unknown = unknown});
          },
          "text"_a, nb::arg("ends").noconvert(), nb::arg("ranks").noconvert(), "unknown"_a,
          "space_first"_a)
      .def("__len__", &BytePairs::size)
      .def_prop_ro("most_bytes", &BytePairs::most_bytes)
      .def_prop_ro("most_chars", &BytePairs::most_chars)
      .def(
          "entry",
          [](const BytePairs& self, int64_t token) -> nb::object {
            if (token < 0 || size_t(token) >= self.size()) return nb::none();
            const std::string_view text = self.entry(size_t(token));
            return nb::str(text.data(), text.size());
          },
          "token"_a)
      .def(
          "find",
          [](const BytePairs& self, const nb::str& text) -> nb::object {
            const int32_t token = self.find(utf8(text));
            return token < 0 ? nb::none() : nb::object(nb::int_(token));
          },
          "text"_a)
      .def("encode", &encode, "text"_a, "kinds"_a, "offsets"_a, nb::arg("tokens").noconvert());
}
