#include "attention_py.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <span>
#include <string>
#include <vector>

#include "../bindings.h"
#include "../pool.h"
#include "../step_check.h"
#include "attention.h"
#include "move_slots.h"
#include "rope_write.h"

namespace penstock {
namespace {

using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Angles = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// float32, or bfloat16 held in uint16.
Array array_of(const Matrix& m) {
  const bool wide = m.dtype() == nb::dtype<float>();
  if (!wide && m.dtype() != nb::dtype<uint16_t>())
    throw std::invalid_argument("activations must be float32, or bfloat16 as uint16");
  return {static_cast<std::byte*>(m.data()), wide ? Elem::f32 : Elem::bf16, int64_t(m.shape(1))};
}

// The cache of a layer in `bytes`, which must be whole blocks, and how many.
struct Cache {
  KvLayer layer;
  int blocks;

  Cache(MutableBytes bytes, const std::string& element, int kv_heads, int64_t head_dim,
        int value_dim = 0)
      : layer(KvLayer::alone(reinterpret_cast<std::byte*>(bytes.data()), parse_kv_elem(element),
                             kv_heads, 0)) {
    expect(layer.elem != Elem::i32, "a KV cache holds float32, bfloat16, float16, int8, int4, k8v4 or fp8");
    const bool fours = layer.value_tile().elem == Elem::i4;
    expect(!fours || head_dim % 8 == 0,
           "heads of a cache in int4 or k8v4 have a multiple of 8 components");
    expect(value_dim == 0 || (!fours && layer.elem != Elem::e4m3),
           "latents are not cached in int4, k8v4 or fp8");
    expect(kv_heads >= 1 && kv_heads <= 1 << 16, "a cache has heads");
    if (value_dim == 0)
      expect(head_dim >= 2 && head_dim % 2 == 0 && head_dim <= kMostHeadDim,
             "heads have an even size up to 512");
    else
      expect(kv_heads == 1 && 1 <= value_dim && value_dim <= head_dim && head_dim <= kMostLatentDim,
             "a cache of latents has one head of up to 2048 components");
    layer = KvLayer::alone(layer.base, layer.elem, kv_heads, int(head_dim), value_dim);
    expect(bytes.size() % layer.block_bytes() == 0 &&
               bytes.size() / layer.block_bytes() <= size_t(INT32_MAX / kBlockSize),
           "a cache is whole blocks");
    blocks = int(bytes.size() / layer.block_bytes());
  }

  void check_slots(std::span<const int32_t> slots) const {
    for (const int32_t slot : slots)
      expect(slot >= 0 && slot < blocks * kBlockSize, "a slot lies outside the cache");
  }
};

// Components of a head in rows of `heads` of them.
int64_t head_dim_of(const Matrix& m, int heads) {
  expect(heads >= 1 && heads <= 1 << 16 && m.shape(1) % size_t(heads) == 0,
         "rows are whole heads");
  return int64_t(m.shape(1)) / heads;
}

void run_rope_write(Matrix qkv, Matrix q, MutableBytes bytes, const std::string& element,
                    int heads, int kv_heads, Angles cos, Angles sin, std::optional<Floats> q_norm,
                    std::optional<Floats> k_norm, float eps, Ints positions, Ints slots,
                    int threads, bool interleaved) {
  const int64_t head_dim = head_dim_of(q, heads);
  const Cache cache(bytes, element, kv_heads, head_dim);
  const size_t tokens = positions.size();
  const int64_t rope_dim = 2 * int64_t(cos.shape(1));
  const auto weight = [&](const std::optional<Floats>& w) {
    expect(!w || int64_t(w->size()) == head_dim, "a norm has a weight for each component");
    return w ? w->data() : nullptr;
  };
  const RopeWriteArgs args{cache.layer,
                           array_of(qkv),
                           array_of(q),
                           heads,
                           {cos.data(), sin.data(), int(rope_dim), interleaved},
                           weight(q_norm),
                           weight(k_norm),
                           eps};
  expect(args.qkv.elem == Elem::f32 &&
             args.qkv.cols == (heads + 2 * int64_t(kv_heads)) * head_dim,
         "queries, keys and values are float32, and fit the heads");
  expect(tokens <= size_t(INT32_MAX) && slots.size() == tokens && qkv.shape(0) == tokens &&
             q.shape(0) == tokens,
         "rows, positions and slots differ in number");
  expect(rope_dim <= head_dim && sin.shape(0) == cos.shape(0) && sin.shape(1) == cos.shape(1),
         "the tables of angles differ, or turn more than a head has");
  for (size_t t = 0; t < tokens; ++t)
    expect(positions.data()[t] >= 0 && size_t(positions.data()[t]) < cos.shape(0),
           "a position lies outside the tables of angles");
  cache.check_slots({slots.data(), tokens});
  StepView step{};
  step.positions = positions.data();
  const KvTables tables{slots.data(), nullptr, nullptr, 0};
  step.groups = {&tables, 1};
  step.tokens = int(tokens);
  Pool pool(threads, false);
  pool.run([&](Worker& worker) { rope_write(args, step, worker); });
}

void run_attention(Matrix q, Matrix out, MutableBytes bytes, const std::string& element, int heads,
                   int kv_heads, float scale, int window, Ints positions, Ints slots,
                   Ints query_starts, Ints context_lens, Ints block_starts, Ints block_ids,
                   int threads, int layers, std::optional<Ints> tree_parents, float softcap,
                   std::optional<Floats> slopes, std::optional<Floats> sinks, int value_dim,
                   int chunk) {
  const Cache cache(bytes, element, kv_heads, head_dim_of(q, heads), value_dim);
  const std::vector<int32_t> token_ids(positions.size());  // not looked at
  const KvTables tables = kv_tables(span_of(slots), span_of(block_starts), span_of(block_ids),
                                    positions.size(), context_lens.size());
  const StepView step =
      step_view(token_ids, span_of(positions), span_of(query_starts), span_of(context_lens),
                {&tables, 1}, {}, {}, tree_parents ? span_of(*tree_parents) : Indices{});
  expect(q.shape(0) == positions.size() && out.shape(0) == q.shape(0) &&
             out.shape(1) == size_t(heads) * size_t(cache.layer.out_dim()),
         "queries, output and positions differ in number");
  ExecutorShape limits{};
  limits.num_blocks = cache.blocks;
  limits.max_tokens = std::max(step.tokens, 1);
  limits.max_sequences = std::max(step.sequences, 1);
  limits.max_positions = kMostPositions;
  limits.vocabulary = 1;
  check_step(step, {}, limits, {1, 0});
  const auto of_heads = [&](const std::optional<Floats>& x) {
    expect(!x || x->size() == size_t(heads), "slopes and sinks are one for each head");
    return x ? x->data() : nullptr;
  };
  const AttentionArgs args{cache.layer, array_of(q), array_of(out),    heads,          scale,
                           window,      softcap,     of_heads(slopes), of_heads(sinks), 0,
                           chunk};
  const AttentionShape shape{heads, kv_heads, cache.layer.head_dim, window, value_dim, chunk};
  const int32_t* lens = context_lens.data();
  AttentionWork work(shape, {step.tokens, step.sequences,
                             *std::max_element(lens, lens + step.sequences), threads});
  Pool pool(threads, false);
  pool.reserve_scratch(attention_scratch_bytes(shape));
  build_attention_work(step, work);
  for (int i = 0; i < layers; ++i)
    pool.run([&](Worker& worker) { attention(args, step, work, worker); });
}

void run_move_slots(MutableBytes bytes, const std::string& element, int kv_heads, int head_dim,
                    IntPairs moves, int value_dim) {
  const Cache cache(bytes, element, kv_heads, head_dim, value_dim);
  cache.check_slots(span_of(moves));
  move_slots(cache.layer, span_of(moves));
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("rope_write", &run_rope_write, exact("qkv"), exact("q"), exact("cache"),
        nb::arg("element"), nb::kw_only(), nb::arg("heads"), nb::arg("kv_heads"), exact("cos"),
        exact("sin"), exact("q_norm").none(), exact("k_norm").none(), nb::arg("eps"),
        exact("positions"), exact("slots"), nb::arg("threads"), nb::arg("interleaved") = false);
  m.def("attention", &run_attention, exact("q"), exact("out"), exact("cache"),
        nb::arg("element"), nb::kw_only(), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("scale"),
        nb::arg("window"), exact("positions"), exact("slots"), exact("query_starts"),
        exact("context_lens"), exact("block_starts"), exact("block_ids"),
        nb::arg("threads"), nb::arg("layers") = 1, exact("tree_parents") = nb::none(),
        nb::arg("softcap") = 0.0f, exact("slopes") = nb::none(), exact("sinks") = nb::none(),
        nb::arg("value_dim") = 0, nb::arg("chunk") = 0);
  m.def("move_slots", &run_move_slots, exact("cache"), nb::arg("element"), nb::kw_only(),
        nb::arg("kv_heads"), nb::arg("head_dim"), exact("moves"), nb::arg("value_dim") = 0);
}

}  // namespace penstock
