// Sampling in Python. backends/cpu/sampler.py is its one user.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <optional>
#include <tuple>

#include "bind_executor.h"
#include "bindings.h"
#include "kernels/sample.h"

namespace penstock {

struct PySampleState {
  SampleState native;
};

// Chooses on the threads of an executor, whose steps must not run meanwhile.
struct PySampler {
  PyExecutor& executor;
  int64_t columns;  // of logits
  std::vector<RowSampler> rows;  // one a thread

  PySampler(PyExecutor& owner, int64_t outputs) : executor(owner), columns(outputs) {
    for (int i = 0; i < owner.get().shape().threads; ++i) rows.emplace_back(columns);
  }
  PySampler(const PySampler&) = delete;

  // Calls fn(RowSampler&, i) for each i < count, a free thread taking the next.
  template <class F>
  void each(int64_t count, F fn) {
    Executor& running = executor.get();
    if (count == 1) return fn(rows[0], 0);
    std::atomic<int64_t> next{0};
    running.pool().run([&](Worker& worker) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
        fn(rows[size_t(worker.id)], i);
    });
  }
};

namespace {

using namespace nb::literals;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = std::optional<std::vector<std::optional<Mask>>>;
using Report = std::tuple<float, int64_t, float, int64_t, std::vector<int32_t>, std::vector<float>>;

void construct_state(PySampleState* self, int64_t vocabulary, uint64_t key, double temperature, int64_t top_k,
                     double top_p, double min_p, float repetition_penalty,
                     float frequency_penalty, float presence_penalty,
                     std::optional<int64_t> repeat_last_n, int64_t min_tokens,
                     std::optional<int> logprobs, bool constrained,
                     const std::vector<std::pair<int32_t, float>>& logit_bias,
                     std::vector<int32_t> ending, const std::vector<int32_t>& prompt) {
  std::vector<TokenBias> biases;
  for (const auto& [token, bias] : logit_bias) biases.push_back({token, bias});
  const SampleOptions options{vocabulary,
                              key,
                              temperature,
                              top_k,
                              top_p,
                              min_p,
                              repetition_penalty,
                              frequency_penalty,
                              presence_penalty,
                              repeat_last_n,
                              min_tokens,
                              logprobs.value_or(-1),
                              constrained};
  new (self) PySampleState{SampleState(options, std::move(biases), std::move(ending), prompt)};
}

void check_rows(const PySampler& self, const Logits& logits, const std::vector<int64_t>& rows) {
  expect(int64_t(logits.shape(1)) == self.columns,
         "logits have other columns than the sampler was made for");
  for (const int64_t row : rows)
    expect(row >= 0 && row < int64_t(logits.shape(0)), "a row lies outside the logits");
}

std::pair<std::vector<int32_t>, std::vector<int32_t>> choose(PySampler& self, const Logits& logits,
                                                             const std::vector<int64_t>& rows,
                                                             const nb::list& states,
                                                             const Masks& masks) {
  check_rows(self, logits, rows);
  expect(rows.size() == states.size(), "one state a row");
  expect(!masks || masks->size() == rows.size(), "one mask a row, or None");
  std::vector<const SampleState*> natives;
  for (const nb::handle state : states) {
    natives.push_back(&nb::cast<const PySampleState&>(state).native);
    expect(natives.back()->options().vocabulary == int64_t(logits.shape(1)),
           "a state has another vocabulary than the logits");
  }
  std::vector<const uint32_t*> words(rows.size(), nullptr);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!masks || !(*masks)[i]) continue;
    expect(int64_t((*masks)[i]->size()) == (int64_t(logits.shape(1)) + 31) / 32,
           "a mask has another vocabulary than the logits");
    words[i] = (*masks)[i]->data();
  }
  std::vector<int32_t> tokens(rows.size()), errors(rows.size());
  {
    nb::gil_scoped_release unlocked;
    self.each(int64_t(rows.size()), [&](RowSampler& sampler, int64_t i) {
      const float* row = logits.data() + rows[size_t(i)] * int64_t(logits.shape(1));
      const Choice choice = sampler.choose(row, *natives[size_t(i)], words[size_t(i)]);
      tokens[size_t(i)] = choice.token;
      errors[size_t(i)] = int32_t(choice.error);
    });
  }
  return {std::move(tokens), std::move(errors)};
}

std::vector<Report> report(PySampler& self, const Logits& logits, const std::vector<int64_t>& rows,
                           const std::vector<int32_t>& tokens, const std::vector<int>& counts) {
  check_rows(self, logits, rows);
  expect(rows.size() == tokens.size() && rows.size() == counts.size(),
         "one token and one count a row");
  for (const int32_t token : tokens)
    expect(token >= 0 && token < int32_t(logits.shape(1)), "a token lies outside the vocabulary");
  std::vector<TokenReport> reports(rows.size());
  {
    nb::gil_scoped_release unlocked;
    self.each(int64_t(rows.size()), [&](RowSampler& sampler, int64_t i) {
      const float* row = logits.data() + rows[size_t(i)] * int64_t(logits.shape(1));
      reports[size_t(i)] = sampler.report(row, tokens[size_t(i)], counts[size_t(i)]);
    });
  }
  std::vector<Report> result;
  for (const TokenReport& r : reports) {
    std::vector<int32_t> ids;
    std::vector<float> top;
    for (const RankedToken& token : r.top) {
      ids.push_back(token.id);
      top.push_back(token.logit);
    }
    result.emplace_back(r.logit, r.rank, r.peak, r.total, std::move(ids), std::move(top));
  }
  return result;
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<PySampleState>(m, "SampleState")
      .def("__init__", &construct_state, nb::kw_only(), "vocabulary"_a, "key"_a, "temperature"_a, "top_k"_a,
           "top_p"_a, "min_p"_a, "repetition_penalty"_a, "frequency_penalty"_a,
           "presence_penalty"_a, "repeat_last_n"_a.none(), "min_tokens"_a, "logprobs"_a.none(), "constrained"_a, "logit_bias"_a, "ending"_a,
           "prompt"_a)
      .def("append", [](PySampleState& self, int32_t token) { self.native.append(token); },
           "token_id"_a)
      .def_prop_ro("greedy", [](const PySampleState& self) { return self.native.greedy(); })
      .def_prop_ro("plain",
                   [](const PySampleState& self) {
                     return self.native.greedy() && self.native.options().logprobs < 0;
                   })
      .def_prop_ro("logprobs",
                   [](const PySampleState& self) -> std::optional<int> {
                     const int count = self.native.options().logprobs;
                     return count < 0 ? std::nullopt : std::optional(count);
                   })
      .def_prop_ro("num_output",
                   [](const PySampleState& self) { return self.native.num_output(); });
  nb::class_<PySampler>(m, "Sampler")
      .def("__init__",
           [](PySampler* self, PyExecutor& executor, int64_t columns) {
             expect(columns > 0 && columns <= kMostVocabulary,
                    "logits have 1 to 2^22 columns");
             new (self) PySampler(executor, columns);
           },
           "executor"_a, "columns"_a, nb::keep_alive<1, 2>())
      .def("choose", &choose, exact("logits"), "rows"_a, "states"_a,
           exact("masks").none() = nb::none())
      .def("report", &report, exact("logits"), "rows"_a, "token_ids"_a, "counts"_a);
}

}  // namespace penstock
