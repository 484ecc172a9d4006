// The extension module penstock.routing._tables.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <string_view>

#include "books.h"
#include "costs.h"

namespace {

namespace nb = nanobind;
using namespace nb::literals;
using namespace penstock;

BlockKeys keys_of(const nb::bytes& joined) {
  return BlockKeys(std::string_view(joined.c_str(), joined.size()));
}

BlockKey key_of(const nb::bytes& key) {
  const BlockKeys keys = keys_of(key);
  if (keys.size() != 1) throw std::invalid_argument("a key has 16 bytes");
  return keys[0];
}

// What Chain of penstock/routing/query.py has, which must outlive this.
Chain chain_of(nb::handle chain) {
  static PyObject* const keys_name = PyUnicode_InternFromString("keys");
  static PyObject* const block_name = PyUnicode_InternFromString("block");
  const auto attribute = [&](PyObject* name) {
    PyObject* const value = PyObject_GetAttr(chain.ptr(), name);
    if (!value) throw nb::python_error();
    return nb::steal(value);
  };
  return {keys_of(nb::cast<nb::bytes>(attribute(keys_name))),
          nb::cast<int64_t>(attribute(block_name))};
}

nb::int_ number_of(const ReplicaSet& set) {
  const std::span<const uint64_t> words = set.words();
  if (words.size() <= 1) return nb::int_(set.word(0));
  const nb::bytes bytes(reinterpret_cast<const char*>(words.data()), 8 * words.size());
  return nb::int_(nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
                      .attr("from_bytes")(bytes, "little"));
}

// Sets as Python has them, numbers whose bits are replicas. The one before is remembered, since the set
// of all that may be chosen is the same object from one request to the next.
class Sets {
 public:
  const ReplicaSet& read(const nb::int_& number) {
    if (number.is(number_)) return set_;
    const auto bits = nb::cast<size_t>(number.attr("bit_length")());
    const size_t words = (bits + 63) / 64;
    if (words > (kMaxReplicas + 63) / 64) throw std::invalid_argument("there is no such replica");
    const nb::bytes bytes(number.attr("to_bytes")(8 * words, "little"));
    set_.reset(words);
    std::copy_n(bytes.c_str(), 8 * words, reinterpret_cast<char*>(set_.words().data()));
    number_ = number;
    return set_;
  }

 private:
  nb::object number_;
  ReplicaSet set_;
};

struct PyHolderIndex : HolderIndex {
  Sets sets;
  Overlaps overlaps;
};

nb::list prefixes(PyHolderIndex& self, nb::handle chain, const nb::int_& among) {
  self.overlaps.clear();
  self.prefixes(chain_of(chain), self.sets.read(among), self.overlaps);
  self.overlaps.sort();
  nb::list found;
  for (const Overlaps::Group& group : self.overlaps.groups())
    found.append(nb::make_tuple(group.held, number_of(group.replicas)));
  return found;
}

struct PyCosts : Costs {
  using Costs::Costs;
  Sets sets;
  std::vector<Chain> chains;
};

nb::tuple cheapest(PyCosts& self, const nb::tuple& chains, int64_t prompt, const nb::int_& among) {
  self.chains.clear();
  for (const nb::handle chain : chains) self.chains.push_back(chain_of(chain));
  const Cheapest& found = self.cheapest(self.chains, prompt, self.sets.read(among));
  return nb::make_tuple(found.cost, found.cached, number_of(found.replicas));
}

LoadWeights weights_of(nb::handle weights) {
  return {.decode_tokens = nb::cast<int64_t>(weights.attr("decode_tokens")),
          .grain = nb::cast<int64_t>(weights.attr("grain")),
          .given_grain = nb::cast<int64_t>(weights.attr("given_grain")),
          .uncached = nb::cast<double>(weights.attr("uncached")),
          .lost = nb::cast<double>(weights.attr("lost"))};
}

struct PyLoadBook : LoadBook {
  explicit PyLoadBook(nb::object weights) : LoadBook(weights_of(weights)), given_weights(weights) {}
  nb::object given_weights;
};

nb::bytes joined(const Book& book) {
  const std::vector<BlockKey> keys = book.keys();
  return nb::bytes(reinterpret_cast<const char*>(keys.data()), keys.size() * BlockKeys::kBytes);
}

int64_t known(std::optional<int64_t> level) {
  if (!level) throw std::out_of_range("there are no replicas");
  return *level;
}

void bind_loads(nb::module_& m) {
  nb::class_<LoadLevels>(m, "LoadLevels")
      .def(nb::init<>())
      .def("put", [](LoadLevels& self, ReplicaId replica, int64_t level) { self.put(replica, level); },
           "replica"_a, "level"_a)
      .def("drop", [](LoadLevels& self, ReplicaId replica) { self.drop(replica); }, "replica"_a)
      .def("level", &LoadLevels::level, "replica"_a)
      .def_prop_ro("lowest", [](const LoadLevels& self) { return known(self.lowest()); })
      .def_prop_ro("highest", [](const LoadLevels& self) { return known(self.highest()); })
      .def(
          "least",
          [](const LoadLevels& self, const nb::int_& among) {
            Sets sets;
            ReplicaSet equal;
            const int64_t least = self.least(sets.read(among), equal);
            return nb::make_tuple(least, number_of(equal));
          },
          "among"_a);
  nb::class_<PyLoadBook>(m, "LoadBook")
      .def(nb::init<nb::object>(), "weights"_a)
      .def_prop_ro("weights", [](const PyLoadBook& self) { return self.given_weights; })
      .def_prop_ro("work", &PyLoadBook::work, nb::rv_policy::reference_internal)
      .def_prop_ro("given", &PyLoadBook::given, nb::rv_policy::reference_internal)
      .def_prop_ro("requests", &PyLoadBook::requests, nb::rv_policy::reference_internal)
      .def("join", &PyLoadBook::join, "replica"_a)
      .def("leave", &PyLoadBook::leave, "replica"_a)
      .def("begin", &PyLoadBook::begin, "replica"_a, "tokens"_a)
      .def("prefilled", &PyLoadBook::prefilled, "replica"_a, "tokens"_a)
      .def("end", &PyLoadBook::end, "replica"_a, "tokens"_a)
      .def(
          "catch_up",
          [](PyLoadBook& self, size_t replica, const nb::int_& others) {
            Sets sets;
            self.catch_up(replica, sets.read(others));
          },
          "replica"_a, "others"_a)
      .def("prefill", &PyLoadBook::prefill, "replica"_a)
      .def("decoding", &PyLoadBook::decoding, "replica"_a);
}

void bind_index(nb::module_& m) {
  nb::class_<PyHolderIndex>(m, "HolderIndex")
      .def(nb::init<>())
      .def("__len__", &PyHolderIndex::size)
      .def(
          "holders",
          [](const PyHolderIndex& self, const nb::bytes& key) {
            ReplicaSet found;
            self.holders(key_of(key), found);
            return number_of(found);
          },
          "key"_a)
      .def("prefixes", &prefixes, "chain"_a, "among"_a)
      .def_prop_ro("full", [](const PyHolderIndex& self) { return number_of(self.full()); })
      .def_prop_ro("held", &PyHolderIndex::held, nb::rv_policy::reference_internal);
  nb::class_<ReportedBook>(m, "ReportedBook")
      .def(
          "__init__",
          [](ReportedBook* self, PyHolderIndex& index, size_t replica) {
            new (self) ReportedBook(index, replica);
          },
          "index"_a, "replica"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("held", &ReportedBook::held)
      .def("keys", [](const ReportedBook& self) { return joined(self); })
      .def("begin", [](ReportedBook& self, nb::handle chain) { self.begin(chain_of(chain).keys); },
           "chain"_a)
      .def("end", [](ReportedBook& self, nb::handle chain) { self.end(chain_of(chain).keys); },
           "chain"_a)
      .def(
          "change",
          [](ReportedBook& self, const nb::bytes& added, const nb::bytes& removed) {
            self.change(keys_of(added), keys_of(removed));
          },
          "added"_a, "removed"_a)
      .def("replace", [](ReportedBook& self, const nb::bytes& held) { self.replace(keys_of(held)); },
           "held"_a)
      .def("clear", &ReportedBook::clear)
      .def("leave", &ReportedBook::leave);
  nb::class_<AssumedBook>(m, "AssumedBook")
      .def(
          "__init__",
          [](AssumedBook* self, PyHolderIndex& index, size_t replica, size_t capacity) {
            new (self) AssumedBook(index, replica, capacity);
          },
          "index"_a, "replica"_a, "capacity"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("held", &AssumedBook::held)
      .def("keys", [](const AssumedBook& self) { return joined(self); })
      .def("begin", [](AssumedBook& self, nb::handle chain) { self.begin(chain_of(chain).keys); },
           "chain"_a)
      .def("end", [](AssumedBook& self, nb::handle chain) { self.end(chain_of(chain).keys); },
           "chain"_a)
      .def("clear", &AssumedBook::clear)
      .def("leave", &AssumedBook::leave);
}

}  // namespace

NB_MODULE(_tables, m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const UnknownReplica& error) {
      PyErr_SetString(PyExc_KeyError, error.what());
    }
  });
  bind_index(m);
  bind_loads(m);
  nb::class_<PyCosts>(m, "Costs")
      .def(
          "__init__",
          [](PyCosts* self, PyHolderIndex& index, PyLoadBook& loads) {
            new (self) PyCosts(index, loads);
          },
          "index"_a, "loads"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("cheapest", &cheapest, "chains"_a, "prompt"_a, "among"_a);
}
