// What the Python bindings share: arrays as borrowed views, and names of types.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/gemm.h"
#include "types.h"

namespace penstock {

namespace nb = nanobind;

// Weights and activations cross as bytes, since NumPy has no bfloat16 that the buffer protocol
// knows. All arrays are C-contiguous.
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Features = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntPairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

// Quantized weights: codes [n, k] and scales [n, groups].
using Codes = nb::ndarray<const int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableCodes = nb::ndarray<int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableScales = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline std::span<const std::byte> span_of(const Bytes& a) {
  return {reinterpret_cast<const std::byte*>(a.data()), a.size()};
}

inline std::span<const int32_t> span_of(const IntPairs& a) { return {a.data(), a.size()}; }

inline Elem parse_elem(std::string_view name) {
  if (name == "float32") return Elem::f32;
  if (name == "bfloat16") return Elem::bf16;
  if (name == "float16") return Elem::f16;
  if (name == "int32") return Elem::i32;
  throw std::invalid_argument("no element type is called '" + std::string(name) + "'");
}

// Of the KV cache, which may also be quantized.
inline Elem parse_kv_elem(std::string_view name) {
  return name == "int8" ? Elem::i8 : parse_elem(name);
}

inline Activation parse_activation(std::string_view name) {
  if (name == "none") return Activation::none;
  if (name == "silu") return Activation::silu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  throw std::invalid_argument("no activation is called '" + std::string(name) + "'");
}

// The arrays of engine/step.py as one view. Throws std::invalid_argument if their lengths disagree.
inline StepView step_view(const Ints& token_ids, const Ints& positions, const Ints& slots,
                          const Ints& query_starts, const Ints& context_lens,
                          const Ints& block_starts, const Ints& block_ids,
                          const Ints& logit_rows, const Ints& hidden_rows,
                          const Ints& tree_parents) {
  const size_t tokens = token_ids.size(), sequences = context_lens.size();
  if (positions.size() != tokens || slots.size() != tokens ||
      query_starts.size() != sequences + 1 || block_starts.size() != sequences + 1)
    throw std::invalid_argument("the arrays of a step disagree in length");
  if (tree_parents.size() != 0 && tree_parents.size() != tokens)
    throw std::invalid_argument("a step has " + std::to_string(tree_parents.size()) +
                                " tree_parents for " + std::to_string(tokens) +
                                " tokens: one each, or none at all");
  const int32_t* starts = block_starts.data();
  for (size_t i = 0; i < sequences; ++i)
    if (starts[i] > starts[i + 1] || starts[i] < 0)
      throw std::invalid_argument("block_starts of a step must ascend from 0");
  if (size_t(starts[sequences]) != block_ids.size())
    throw std::invalid_argument("block_starts of a step do not end at its block_ids");
  return {token_ids.data(),    positions.data(), slots.data(),     query_starts.data(),
          context_lens.data(), starts,           block_ids.data(), logit_rows.data(),
          int(tokens),         int(sequences),   int(logit_rows.size()),
          hidden_rows.data(),  int(hidden_rows.size()),
          tree_parents.size() ? tree_parents.data() : nullptr};
}

void bind_checksum(nb::module_& m);
void bind_executor(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_measure(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_suffix(nb::module_& m);

}  // namespace penstock
