#include "attention_py.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "../bindings.h"
#include "../pool.h"
#include "attention.h"
#include "move_slots.h"
#include "rope_write.h"

namespace penstock {
namespace {

using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// float32, or bfloat16 held in uint16.
Array array_of(const Matrix& m) {
  const bool wide = m.dtype() == nb::dtype<float>();
  if (!wide && m.dtype() != nb::dtype<uint16_t>())
    throw std::invalid_argument("activations must be float32, or bfloat16 as uint16");
  return {static_cast<std::byte*>(m.data()), wide ? Elem::f32 : Elem::bf16, int64_t(m.shape(1))};
}

// The arrays of a StepInput that these kernels read, in its order.
StepView view_of(const Ints& positions, const Ints& slots, const Ints& query_starts,
                 const Ints& context_lens, const Ints& block_starts, const Ints& block_ids,
                 const std::optional<Ints>& tree_parents) {
  if (query_starts.shape(0) != context_lens.shape(0) + 1 ||
      block_starts.shape(0) != query_starts.shape(0) || positions.shape(0) != slots.shape(0) ||
      (tree_parents && tree_parents->shape(0) != positions.shape(0)))
    throw std::invalid_argument("the step's arrays disagree about tokens or sequences");
  return {nullptr,
          positions.data(),
          slots.data(),
          query_starts.data(),
          context_lens.data(),
          block_starts.data(),
          block_ids.data(),
          nullptr,
          int(positions.shape(0)),
          int(context_lens.shape(0)),
          0,
          nullptr,
          0,
          tree_parents ? tree_parents->data() : nullptr};
}

void run_rope_write(Matrix qkv, Matrix q, MutableBytes cache, const std::string& element, int heads,
                    int kv_heads, Floats cos, Floats sin, nb::object q_norm, nb::object k_norm,
                    float eps, Ints positions, Ints slots, int threads) {
  const int head_dim = int(q.shape(1)) / heads;
  const auto weight = [](const nb::object& o) {
    return o.is_none() ? nullptr : nb::cast<Floats>(o).data();
  };
  const RopeWriteArgs args{
      {reinterpret_cast<std::byte*>(cache.data()), parse_kv_elem(element), kv_heads, head_dim},
      array_of(qkv), array_of(q), heads, cos.data(), sin.data(), int(cos.shape(1)) * 2,
      weight(q_norm), weight(k_norm), eps};
  StepView step{};
  step.positions = positions.data();
  step.slots = slots.data();
  step.tokens = int(positions.shape(0));
  Pool pool(threads, false);
  pool.run([&](Worker& worker) { rope_write(args, step, worker); });
}

void run_attention(Matrix q, Matrix out, MutableBytes cache, const std::string& element, int heads,
                   int kv_heads, float scale, int window, Ints positions, Ints slots,
                   Ints query_starts, Ints context_lens, Ints block_starts, Ints block_ids,
                   int threads, int layers, std::optional<Ints> tree_parents) {
  const int head_dim = int(q.shape(1)) / heads;
  const StepView step =
      view_of(positions, slots, query_starts, context_lens, block_starts, block_ids, tree_parents);
  const AttentionArgs args{
      {reinterpret_cast<std::byte*>(cache.data()), parse_kv_elem(element), kv_heads, head_dim},
      array_of(q), array_of(out), heads, scale, window};
  const AttentionShape shape{heads, kv_heads, head_dim, window};
  const int32_t* lens = context_lens.data();
  AttentionWork work(shape, {std::max(step.tokens, 1), std::max(step.sequences, 1),
                             *std::max_element(lens, lens + step.sequences), threads});
  Pool pool(threads, false);
  pool.reserve_scratch(attention_scratch_bytes(shape));
  build_attention_work(step, work);
  for (int i = 0; i < layers; ++i)
    pool.run([&](Worker& worker) { attention(args, step, work, worker); });
}

void run_move_slots(MutableBytes cache, const std::string& element, int kv_heads, int head_dim,
                    IntPairs moves) {
  move_slots({reinterpret_cast<std::byte*>(cache.data()), parse_kv_elem(element), kv_heads,
              head_dim},
             span_of(moves));
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("rope_write", &run_rope_write, nb::arg("qkv"), nb::arg("q"), nb::arg("cache"),
        nb::arg("element"), nb::kw_only(), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("cos"),
        nb::arg("sin"), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"),
        nb::arg("positions"), nb::arg("slots"), nb::arg("threads"));
  m.def("attention", &run_attention, nb::arg("q"), nb::arg("out"), nb::arg("cache"),
        nb::arg("element"), nb::kw_only(), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("scale"),
        nb::arg("window"), nb::arg("positions"), nb::arg("slots"), nb::arg("query_starts"),
        nb::arg("context_lens"), nb::arg("block_starts"), nb::arg("block_ids"),
        nb::arg("threads"), nb::arg("layers") = 1, nb::arg("tree_parents") = nb::none());
  m.def("move_slots", &run_move_slots, nb::arg("cache"), nb::arg("element"), nb::kw_only(),
        nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("moves"));
}

}  // namespace penstock
