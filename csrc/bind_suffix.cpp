#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "bindings.h"
#include "suffix.h"

namespace penstock {

struct PySuffixAutomaton {
  SuffixAutomaton native;
};

namespace {

using namespace nb::literals;

// The tokens of an array("i") while this lives. nanobind's own arrays take ten times as long.
class Tokens {
 public:
  explicit Tokens(nb::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_ND | PyBUF_FORMAT) != 0)
      throw nb::python_error();
    if (buffer_.ndim != 1 || buffer_.itemsize != 4 || !buffer_.format ||
        std::string_view(buffer_.format) != "i") {
      PyBuffer_Release(&buffer_);
      throw std::invalid_argument("tokens are an array of 32-bit integers");
    }
  }
  ~Tokens() { PyBuffer_Release(&buffer_); }
  Tokens(const Tokens&) = delete;

  std::span<const int32_t> span() const {
    return {static_cast<const int32_t*>(buffer_.buf), size_t(buffer_.len) / 4};
  }

 private:
  Py_buffer buffer_;
};

nb::object array_of(const nb::object& type, const int32_t* tokens, size_t count) {
  return type("i", nb::bytes(tokens, 4 * count));
}

nb::object array_type() { return nb::module_::import_("array").attr("array"); }

nb::object following(const PySuffixAutomaton& self, size_t count, const nb::object& type) {
  std::vector<int32_t> tokens(self.native.match_end() ? count : 0);
  self.native.following(tokens);
  return array_of(type, tokens.data(), tokens.size());
}

nb::object slice(const PySuffixAutomaton& self, size_t first, size_t end) {
  const std::span<const int32_t> tokens = self.native.tokens();
  end = std::min(end, tokens.size());
  first = std::min(first, end);
  return array_of(array_type(), tokens.data() + first, end - first);
}

nb::list follow(const nb::list& asked, int32_t min_match, size_t most_read) {
  const nb::object type = array_type();
  nb::list found;
  for (const nb::handle each : asked) {
    const nb::tuple item = nb::cast<nb::tuple>(each);
    // Indexing does not check.
    expect(item.size() == 3, "each is an automaton, its text and a count");
    PySuffixAutomaton& automaton = nb::cast<PySuffixAutomaton&>(item[0]);
    const Tokens text(item[1]);
    const size_t known = text.span().size(), read = automaton.native.tokens().size();
    if (read < known)
      automaton.native.extend(text.span().subspan(read, std::min(most_read, known - read)));
    const int32_t length = automaton.native.match_length();
    if ((known > read && known - read > most_read) || length < min_match)
      found.append(nb::none());
    else
      found.append(nb::make_tuple(length, following(automaton, nb::cast<size_t>(item[2]), type)));
  }
  return found;
}

}  // namespace

void bind_suffix(nb::module_& m) {
  nb::class_<PySuffixAutomaton>(m, "SuffixAutomaton")
      .def(
          "__init__",
          [](PySuffixAutomaton* self, nb::object tokens, int32_t walk) {
            SuffixAutomaton native(walk);
            if (!tokens.is_none()) native.extend(Tokens(tokens).span());
            new (self) PySuffixAutomaton{std::move(native)};
          },
          "tokens"_a = nb::none(), "walk"_a = 32)
      .def("__len__", [](const PySuffixAutomaton& self) { return self.native.tokens().size(); })
      .def_prop_ro("match_length",
                   [](const PySuffixAutomaton& self) { return self.native.match_length(); })
      .def_prop_ro("match_end",
                   [](const PySuffixAutomaton& self) { return self.native.match_end(); })
      .def(
          "extend",
          [](PySuffixAutomaton& self, nb::handle tokens) {
            self.native.extend(Tokens(tokens).span());
          },
          "tokens"_a)
      .def(
          "following",
          [](const PySuffixAutomaton& self, size_t count) {
            return following(self, count, array_type());
          },
          "count"_a)
      .def("slice", &slice, "first"_a, "end"_a)
      .def(
          "find",
          [](const PySuffixAutomaton& self, nb::handle tokens) {
            return self.native.find(Tokens(tokens).span());
          },
          "tokens"_a)
      .def_static("follow", &follow, "asked"_a, "min_match"_a, "most_read"_a);
}

}  // namespace penstock
