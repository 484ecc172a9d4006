// What the Python bindings share: arrays as borrowed views, and names of types.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/gemm_block.h"
#include "types.h"

namespace penstock {

namespace nb = nanobind;

// An argument that is an array: taken as it is or not at all. Else nanobind converts element types,
// and what has other strides, into a copy: numbers are cut, and what is written is lost.
inline auto exact(const char* name) { return nb::arg(name).noconvert(); }

// Weights and activations cross as bytes, since NumPy has no bfloat16 that the buffer protocol
// knows. All arrays are C-contiguous.
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Features = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntTriples = nb::ndarray<const int32_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using IntPairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

// Quantized weights: codes [n, k] and scales [n, groups].
using Codes = nb::ndarray<const int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableCodes = nb::ndarray<int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableScales = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline std::span<const std::byte> span_of(const Bytes& a) {
  return {reinterpret_cast<const std::byte*>(a.data()), a.size()};
}

using Indices = std::span<const int32_t>;
inline Indices span_of(const Ints& a) { return {a.data(), a.size()}; }
inline Indices span_of(const IntPairs& a) { return {a.data(), a.size()}; }

inline Elem parse_elem(std::string_view name) {
  if (name == "float32") return Elem::f32;
  if (name == "bfloat16") return Elem::bf16;
  if (name == "float16") return Elem::f16;
  if (name == "int32") return Elem::i32;
  throw std::invalid_argument("no element type is called '" + std::string(name) + "'");
}

// Of the KV cache, which may also be quantized.
inline Elem parse_kv_elem(std::string_view name) {
  if (name == "int8") return Elem::i8;
  if (name == "int4") return Elem::i4;
  if (name == "k8v4") return Elem::k8v4;
  if (name == "fp8") return Elem::e4m3;
  return parse_elem(name);
}

inline void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// Of a format of blocks, as quant/formats calls it.
inline WeightFormat parse_block_format(std::string_view name) {
  static constexpr std::pair<std::string_view, WeightFormat> kFormats[] = {
      {"Q4_0", WeightFormat::q4_0},     {"Q4_1", WeightFormat::q4_1},
      {"Q5_0", WeightFormat::q5_0},     {"Q5_1", WeightFormat::q5_1},
      {"Q8_0", WeightFormat::q8_0},     {"Q2_K", WeightFormat::q2_k},
      {"Q3_K", WeightFormat::q3_k},     {"Q4_K", WeightFormat::q4_k},
      {"Q5_K", WeightFormat::q5_k},     {"Q6_K", WeightFormat::q6_k},
      {"IQ4_NL", WeightFormat::iq4_nl}, {"IQ4_XS", WeightFormat::iq4_xs},
      {"MXFP4", WeightFormat::mxfp4},   {"NVFP4", WeightFormat::nvfp4},
      {"FP8_128", WeightFormat::fp8_128}, {"FP8_32", WeightFormat::fp8_32},
      {"MXFP8", WeightFormat::mxfp8},   {"NF4", WeightFormat::nf4},
      {"FP4", WeightFormat::fp4},       {"NVFP4_SCALED", WeightFormat::nvfp4_scaled},
      {"E8P", WeightFormat::e8p},       {"SMALL_E8", WeightFormat::small_e8}};
  for (const auto& [known, format] : kFormats)
    if (known == name) return format;
  throw std::invalid_argument("no kernel has blocks of the format " + std::string(name));
}

// Of activations, which kernels take for float32 where they are not bfloat16.
inline Elem parse_activation_elem(std::string_view name) {
  const Elem elem = parse_elem(name);
  expect(elem == Elem::f32 || elem == Elem::bf16, "activations are float32 or bfloat16");
  return elem;
}

// Of weights.
inline Elem parse_float_elem(std::string_view name) {
  const Elem elem = parse_elem(name);
  expect(elem != Elem::i32, "weights are of a float type");
  return elem;
}

// Rows of `cols` elements in so many bytes, which they must fill.
inline int64_t rows_in(size_t bytes, int64_t cols, Elem elem) {
  expect(cols >= 1, "rows have at least one column");
  const size_t element = elem_bytes(elem);
  expect(bytes % element == 0 && bytes / element % size_t(cols) == 0,
         "an array does not end with a row");
  return int64_t(bytes / element / size_t(cols));
}

inline Activation parse_activation(std::string_view name) {
  if (name == "none") return Activation::none;
  if (name == "silu") return Activation::silu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  if (name == "sigmoid") return Activation::sigmoid;
  if (name == "relu2") return Activation::relu2;
  if (name == "identity") return Activation::identity;
  throw std::invalid_argument("no activation is called '" + std::string(name) + "'");
}

inline void expect_lengths(bool agree) {
  expect(agree, "the arrays of a step disagree in length");
}

inline void expect_indexable(size_t size) {
  expect(size <= size_t(INT32_MAX), "an array of a step has more than 2^31 - 1 elements");
}

// As step_view(), of one group's tables.
inline KvTables kv_tables(Indices slots, Indices block_starts, Indices block_ids, size_t tokens,
                          size_t sequences) {
  expect_lengths(slots.size() == tokens && block_starts.size() == sequences + 1);
  expect_indexable(block_ids.size());
  return {slots.data(), block_starts.data(), block_ids.data(), int(block_ids.size())};
}

// The arrays of interface/step.py as one view; tree_parents may be empty. Throws
// std::invalid_argument if their lengths disagree; what they hold is for check_step().
inline StepView step_view(Indices token_ids, Indices positions, Indices query_starts,
                          Indices context_lens, std::span<const KvTables> groups,
                          Indices logit_rows, Indices hidden_rows, Indices tree_parents) {
  const size_t tokens = token_ids.size(), sequences = context_lens.size();
  expect_lengths(positions.size() == tokens && query_starts.size() == sequences + 1);
  if (tree_parents.size() != 0 && tree_parents.size() != tokens)
    throw std::invalid_argument("a step has " + std::to_string(tree_parents.size()) +
                                " tree_parents for " + std::to_string(tokens) +
                                " tokens: one each, or none at all");
  for (const size_t size : {tokens, sequences, logit_rows.size(), hidden_rows.size()})
    expect_indexable(size);
  return {.token_ids = token_ids.data(),
          .positions = positions.data(),
          .query_starts = query_starts.data(),
          .context_lens = context_lens.data(),
          .groups = groups,
          .logit_rows = logit_rows.data(),
          .tokens = int(tokens),
          .sequences = int(sequences),
          .logits = int(logit_rows.size()),
          .hidden_rows = hidden_rows.data(),
          .hidden = int(hidden_rows.size()),
          .tree_parents = tree_parents.empty() ? nullptr : tree_parents.data()};
}

void bind_checksum(nb::module_& m);
void bind_encode(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_gram(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_measure(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_suffix(nb::module_& m);

}  // namespace penstock
