// penstock::Executor in Python. backends/cpu/bind.py is its one user.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>
#include <tuple>

#include "bind_executor.h"
#include "bindings.h"

namespace penstock {

namespace {

using namespace nb::literals;

// "T", or "8T" for eight of each.
RowKind parse_rows(std::string_view name) {
  int times = 1;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, times);
  const bool is_number = rest != name.data();
  if (end - rest == 1 && (!is_number || error == std::errc())) {
    if (*rest == 'T') return {RowBase::tokens, times};
    if (*rest == 'S') return {RowBase::selected, times};
    if (*rest == 'R') return {RowBase::logits, times};
  }
  throw std::invalid_argument("rows of a buffer are 'T', 'S' or 'R', or several of each, as '8T'");
}

// As StateGeometry.
using PyStateLayer =
    std::tuple<size_t, int, int, int, size_t, int, int64_t, size_t, int64_t>;

void construct(PyExecutor* self, int threads, const std::vector<int>& cpus, bool crowded,
               int num_blocks, int max_tokens, int max_logits, int max_sequences,
               int max_positions, int vocabulary,
               size_t arena_bytes, const std::string& kv_elem, int kv_groups, int kv_parts,
               size_t kv_part_bytes,
               const std::vector<std::tuple<int, int, int, int, size_t, int, int>>& kv_layers,
               int state_slots, int state_log, size_t state_bytes, const std::string& state_elem,
               const std::vector<PyStateLayer>& state_layers, bool trial) {
  KvPages pages{kv_groups, kv_parts, kv_part_bytes, {}};
  for (const auto& [heads, dim, group, part, offset, value_dim, rows] : kv_layers)
    pages.layers.push_back({heads, dim, group, part, offset, value_dim, rows});
  StateSlots states{state_slots, state_log, state_bytes, parse_elem(state_elem), {}};
  for (const auto& [tiles, heads, rows, columns, ring, ring_rows, ring_columns, log, log_columns] :
       state_layers)
    states.layers.push_back(
        {tiles, heads, rows, columns, ring, ring_rows, ring_columns, log, log_columns});
  const ExecutorShape shape{threads,    cpus,          crowded,       num_blocks, max_tokens,
                            max_logits, max_sequences, max_positions, vocabulary, arena_bytes,
                            parse_kv_elem(kv_elem), trial};
  try {
    new (self) PyExecutor{std::make_unique<Executor>(shape, pages, states)};
  } catch (const std::system_error& error) {
    throw std::invalid_argument("the system does not start " + std::to_string(threads) +
                                " threads (" + error.what() + ")");
  }
}

// A NumPy view of a buffer, as bytes [max rows, cols in bytes]; keeps its memory alive, not the
// executor.
nb::object view(const PyExecutor& self, BufferId id) {
  const Executor& executor = self.get();
  const Array& array = executor.buffer(id);
  auto* owner = new std::shared_ptr<Memory>(executor.memory_of(id));
  nb::capsule keep(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<Memory>*>(p); });
  const size_t rows = size_t(executor.max_rows(id));
  const size_t bytes = size_t(array.cols) * elem_bytes(array.elem);
  const int64_t stride = array.stride * int64_t(elem_bytes(array.elem));
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(array.data, {rows, bytes}, keep, {stride, 1})
      .cast();
}

nb::object kv_copy(const PyExecutor& self, int layer) {
  const KvLayer& kv = self.get().kv(layer);
  const size_t blocks = size_t(self.get().shape().num_blocks), bytes = kv.block_bytes();
  auto* copy = new uint8_t[blocks * bytes];
  for (size_t b = 0; b < blocks; ++b)
    std::copy_n(reinterpret_cast<const uint8_t*>(kv.base) + b * kv.stride, bytes,
                copy + b * bytes);
  nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(copy, {blocks * bytes}, owner).cast();
}

// Every byte of these blocks of a layer, for tests of what is read there.
void kv_fill(PyExecutor& self, int layer, const Ints& blocks, int byte) {
  const KvLayer& kv = self.get().kv(layer);
  for (const int32_t block : span_of(blocks)) {
    expect(block >= 0 && block < self.get().shape().num_blocks, "no such block");
    std::memset(kv.base + size_t(block) * kv.stride, byte, kv.block_bytes());
  }
}

nb::object copy_of(std::span<const std::byte> bytes) {
  auto* copy = new uint8_t[bytes.size()];
  std::memcpy(copy, bytes.data(), bytes.size());
  nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(copy, {bytes.size()}, owner).cast();
}

// Bytes of a slot of states, of all layers, for tests of what is kept there.
nb::object state_copy(const PyExecutor& self, int slot) {
  return copy_of(self.get().state_slot(slot));
}

void state_fill(PyExecutor& self, int slot, int byte) {
  const auto bytes = self.get().state_slot(slot);
  std::memset(bytes.data(), byte, bytes.size());
}

// The executor's regions by number, each with its place in the file.
std::vector<FileRegion> file_regions(const Executor& executor,
                                     const std::vector<std::pair<int, int64_t>>& places) {
  std::vector<FileRegion> found;
  for (const auto& [region, offset] : places) {
    if (region < 0 || size_t(region) >= executor.regions().size() || offset < 0)
      throw std::invalid_argument("no such region of weights, or no such place in a file");
    found.push_back({executor.regions()[size_t(region)], offset});
  }
  return found;
}

template <class F>
auto with_regions(F transfer) {
  return [transfer](PyExecutor& self, int fd, const std::vector<std::pair<int, int64_t>>& places,
                    size_t chunk) {
    try {
      Executor& executor = self.get();
      const auto regions = file_regions(executor, places);
      nb::gil_scoped_release unlocked;
      return transfer(executor, fd, regions, chunk);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
      throw nb::python_error();
    }
  };
}

using PyTables = std::tuple<Ints, Ints, Ints>;  // slots, block_starts, block_ids
using PyStates = std::tuple<Ints, Ints, Ints, IntTriples, IntPairs>;  // fields of StateTables

std::span<const Snapshot> snapshots_of(const IntTriples& rows) {
  static_assert(sizeof(Snapshot) == 3 * sizeof(int32_t));
  return {reinterpret_cast<const Snapshot*>(rows.data()), rows.shape(0)};
}

template <class F>
auto with_step(F f) {
  return [f](PyExecutor& self, const Ints& token_ids, const Ints& positions,
             const Ints& query_starts, const Ints& context_lens,
             const std::vector<PyTables>& groups, const Ints& logit_rows,
             const Ints& hidden_rows, const IntPairs& block_copies, const Ints& tree_parents,
             const IntPairs& slot_moves, const std::optional<Features>& features,
             const std::optional<PyStates>& states, const std::optional<Ints>& adapters) {
    std::vector<KvTables> tables;
    tables.reserve(groups.size());
    for (const auto& [slots, block_starts, block_ids] : groups)
      tables.push_back(kv_tables(span_of(slots), span_of(block_starts), span_of(block_ids),
                                 token_ids.size(), context_lens.size()));
    StepView step =
        step_view(span_of(token_ids), span_of(positions), span_of(query_starts),
                  span_of(context_lens), tables, span_of(logit_rows), span_of(hidden_rows),
                  span_of(tree_parents));
    if (features) {
      if (features->shape(0) != token_ids.size())
        throw std::invalid_argument("a step has features of " +
                                    std::to_string(features->shape(0)) + " tokens for " +
                                    std::to_string(token_ids.size()));
      step.features = features->data();
      step.feature_cols = int64_t(features->shape(1));
    }
    CacheEdits edits{span_of(slot_moves), span_of(block_copies), {}};
    if (states) {
      const auto& [slots, seen, tentative, snapshots, copies] = *states;
      for (const Ints* each : {&slots, &seen, &tentative})
        expect_lengths(each->size() == context_lens.size());
      step.states = {slots.data(), seen.data(), tentative.data(), snapshots_of(snapshots)};
      edits.state_copies = span_of(copies);
    }
    if (adapters) expect_lengths(adapters->size() == context_lens.size());
    Executor& executor = self.get();
    nb::gil_scoped_release unlocked;
    return f(executor, step, edits, adapters ? adapters->data() : nullptr);
  };
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<PyExecutor> executor(m, "Executor");
  bind_ops(executor);
  bind_blocks(executor);
  bind_matrices(executor);
  executor
      .def("__init__", &construct, nb::kw_only(), "threads"_a, "cpus"_a, "crowded"_a,
           "num_blocks"_a, "max_tokens"_a, "max_logits"_a, "max_sequences"_a, "max_positions"_a,
           "vocabulary"_a,
           "arena_bytes"_a, "kv_elem"_a, "kv_groups"_a = 0, "kv_parts"_a = 0, "kv_part_bytes"_a = 0,
           "kv_layers"_a, "state_slots"_a = 0, "state_log"_a = 0, "state_bytes"_a = 0,
           "state_elem"_a = "float32", "state_layers"_a = std::vector<PyStateLayer>(),
           "trial"_a = false)
      .def(
          "add_buffer",
          [](PyExecutor& self, size_t offset, const std::string& elem, int64_t cols,
             size_t row_bytes, const std::string& rows) {
            return self.get().add_buffer(offset, parse_elem(elem), cols, row_bytes,
                                         parse_rows(rows));
          },
          "offset"_a, "elem"_a, "cols"_a, "row_bytes"_a, "rows"_a)
      .def(
          "set_key_columns",
          [](PyExecutor& self, int layer, ConstantId columns) {
            self.get().set_key_columns(layer, columns);
          },
          "layer"_a, "columns"_a)
      .def(
          "join_ranks",
          [](PyExecutor& self, int fd, int rank, int world, size_t slot_bytes, bool crowded) {
            self.get().join_ranks(fd, {rank, world, slot_bytes, crowded});
          },
          nb::kw_only(), "fd"_a, "rank"_a, "world"_a, "slot_bytes"_a, "crowded"_a)
      .def(
          "clear_pages_ahead",
          [](PyExecutor& self, int64_t blocks) { self.get().clear_pages_ahead(blocks); }, "blocks"_a)
      .def_static("rank_group_bytes", &RankGroup::bytes, "world"_a, "slot_bytes"_a)
      .def(
          "add_constant",
          [](PyExecutor& self, const Bytes& bytes) {
            nb::gil_scoped_release unlocked;
            return self.get().add_constant(span_of(bytes));
          },
          exact("bytes"))
      .def(
          "add_table", [](PyExecutor& self, size_t bytes) { return self.get().add_table(bytes); },
          "bytes"_a)
      .def(
          "set_known_positions",
          [](PyExecutor& self, int positions) { self.get().set_known_positions(positions); },
          "positions"_a)
      .def(
          "reserve_constant",
          [](PyExecutor& self, size_t bytes) { return self.get().reserve_constant(bytes); },
          "bytes"_a)
      .def(
          "fill_constant",
          [](PyExecutor& self, ConstantId constant, size_t offset, const Bytes& bytes) {
            nb::gil_scoped_release unlocked;
            self.get().fill_constant(constant, offset, span_of(bytes));
          },
          "constant"_a, "offset"_a, exact("bytes"))
      .def_prop_ro("region_bytes",
                   [](const PyExecutor& self) {
                     std::vector<size_t> sizes;
                     for (const auto& region : self.get().regions()) sizes.push_back(region.size());
                     return sizes;
                   })
      .def("read_regions",
           with_regions([](Executor& executor, int fd, const std::vector<FileRegion>& regions,
                           size_t chunk) { return executor.read_regions(fd, regions, chunk); }),
           "fd"_a, "places"_a, "chunk"_a)
      .def("write_regions",
           with_regions([](Executor& executor, int fd, const std::vector<FileRegion>& regions,
                           size_t chunk) { return executor.write_regions(fd, regions, chunk); }),
           "fd"_a, "places"_a, "chunk"_a)
      .def("view", &view, "buffer"_a)
      .def("kv_copy", &kv_copy, "layer"_a)
      .def("kv_fill", &kv_fill, "layer"_a, exact("blocks"), "byte"_a)
      .def(
          "constant_copy",
          [](const PyExecutor& self, ConstantId id) {
            return copy_of(self.get().constant_bytes(id));
          },
          "constant"_a)
      .def("state_copy", &state_copy, "slot"_a)
      .def("state_fill", &state_fill, "slot"_a, "byte"_a)
      .def("run", with_step([](Executor& executor, const StepView& step, const CacheEdits& edits,
                               const int32_t* adapters) {
             executor.run(step, edits, adapters);
           }),
           exact("token_ids"), exact("positions"), exact("query_starts"), exact("context_lens"),
           exact("groups"), exact("logit_rows"), exact("hidden_rows"), exact("block_copies"),
           exact("tree_parents"), exact("slot_moves"), exact("features").none(),
           exact("states").none() = nb::none(),
           exact("adapters").none() = nb::none())
      .def("profile",
           with_step([](Executor& executor, const StepView& step, const CacheEdits& edits,
                        const int32_t* adapters) {
             std::vector<std::tuple<double, double, double>> times;
             for (const OpTime& op : executor.profile(step, edits, adapters))
               times.emplace_back(op.seconds, op.waiting, op.for_ranks);
             return times;
           }),
           exact("token_ids"), exact("positions"), exact("query_starts"), exact("context_lens"),
           exact("groups"), exact("logit_rows"), exact("hidden_rows"), exact("block_copies"),
           exact("tree_parents"), exact("slot_moves"), exact("features").none(),
           exact("states").none() = nb::none(),
           exact("adapters").none() = nb::none())
      .def_prop_ro("op_names", [](const PyExecutor& self) { return self.get().op_names(); })
      .def_prop_ro("weight_bytes",
                   [](const PyExecutor& self) { return self.get().weight_bytes(); })
      .def("close", [](PyExecutor& self) {
        nb::gil_scoped_release unlocked;
        self.native.reset();
      });
}

}  // namespace penstock
