// Single kernels as Python functions over NumPy arrays: for tests, which compare every variant with
// NumPy. Bytes in, bytes out; each call runs on a pool of its own.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings.h"
#include "kernels/argmax.h"
#include "kernels/attention_py.h"
#include "kernels/embed.h"
#include "kernels/gemm_quantized_py.h"
#include "kernels/norm.h"
#include "kernels/select.h"
#include "memory.h"
#include "pool.h"
#include "simd.h"

namespace penstock {
namespace {

using namespace nb::literals;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableFloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableInts = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A read-only array as the kernels' Array, which has one type for both; kernels do not write it.
Array input(const void* data, Elem elem, int64_t cols) {
  return {const_cast<std::byte*>(static_cast<const std::byte*>(data)), elem, cols};
}

template <class F>
void map_lanes(const Floats& x, std::vector<float>& out, F f) {
  for (size_t i = 0; i < x.size(); i += f32x16::lanes) {
    const int n = int(std::min<size_t>(f32x16::lanes, x.size() - i));
    f(f32x16::load_n(x.data() + i, n)).store_n(out.data() + i, n);
  }
}

std::vector<float> elementwise(const std::string& function, const Floats& x) {
  std::vector<float> out(x.size());
  if (function == "exp") map_lanes(x, out, [](f32x16 v) { return exp(v); });
  else if (function == "silu") map_lanes(x, out, [](f32x16 v) { return silu(v); });
  else if (function == "gelu") map_lanes(x, out, [](f32x16 v) { return gelu(v); });
  else if (function == "gelu_tanh") map_lanes(x, out, [](f32x16 v) { return gelu_tanh(v); });
  else if (function == "sigmoid") map_lanes(x, out, [](f32x16 v) { return sigmoid(v); });
  else if (function == "relu") map_lanes(x, out, [](f32x16 v) { return relu(v); });
  else if (function == "tanh") map_lanes(x, out, [](f32x16 v) { return tanh(v); });
  else if (function == "rsqrt") map_lanes(x, out, [](f32x16 v) { return rsqrt(v); });
  else throw std::invalid_argument("no such function: " + function);
  return out;
}

std::pair<float, float> reduce(const Floats& x) {
  expect(x.size() == f32x16::lanes, "a register has 16 lanes");
  const f32x16 v = f32x16::load(x.data());
  return {hsum(v), hmax(v)};
}

template <class From, class To>
void convert_typed(const std::byte* from, std::byte* to, size_t count) {
  const From* x = reinterpret_cast<const From*>(from);
  To* out = reinterpret_cast<To*>(to);
  size_t i = 0;
  for (; i + f32x16::lanes <= count; i += f32x16::lanes) f32x16::load(x + i).store(out + i);
  f32x16::load_n(x + i, int(count - i)).store_n(out + i, int(count - i));
}

// float32 to or from a two-byte type, whole registers and a partial one at the end.
void convert(const Bytes& x, const std::string& from, MutableBytes out, const std::string& to) {
  const Elem a = parse_elem(from), b = parse_elem(to);
  const size_t count = size_t(rows_in(x.size(), 1, a));
  expect(out.size() == count * elem_bytes(b), "input and output differ in length");
  const auto* source = reinterpret_cast<const std::byte*>(x.data());
  auto* target = reinterpret_cast<std::byte*>(out.data());
  if (a == Elem::f32 && b == Elem::bf16) convert_typed<float, bf16>(source, target, count);
  else if (a == Elem::f32 && b == Elem::f16) convert_typed<float, f16>(source, target, count);
  else if (a == Elem::bf16 && b == Elem::f32) convert_typed<bf16, float>(source, target, count);
  else if (a == Elem::f16 && b == Elem::f32) convert_typed<f16, float>(source, target, count);
  else throw std::invalid_argument("one of the two types must be float32");
}

void run_add_norm(MutableFloatRows residual, std::optional<FloatRows> delta,
                  const Floats& weight, float eps, MutableBytes out, const std::string& elem,
                  int threads) {
  const int64_t rows = int64_t(residual.shape(0)), cols = int64_t(residual.shape(1));
  const Elem type = parse_activation_elem(elem);
  expect(int64_t(weight.size()) == cols, "weight and residual differ in columns");
  expect(out.size() == size_t(rows * cols) * elem_bytes(type), "the output has the wrong size");
  AddNormArgs args{};
  args.residual = input(residual.data(), Elem::f32, cols);
  if (delta) {
    expect(int64_t(delta->shape(0)) == rows && int64_t(delta->shape(1)) == cols,
           "delta and residual differ in shape");
    args.delta = input(delta->data(), Elem::f32, cols);
  }
  args.out = input(out.data(), type, cols);
  args.weight = weight.data();
  args.eps = eps;
  Pool pool(threads, false);
  pool.run([&](Worker& worker) { add_norm(args, rows, worker); });
}

void run_embed(const Ints& token_ids, const Bytes& table, const std::string& elem,
               MutableFloatRows out, int threads) {
  const Elem type = parse_float_elem(elem);
  const size_t row = out.shape(1) * elem_bytes(type);
  expect(out.shape(0) == token_ids.size(), "one output row a token");
  for (size_t i = 0; i < token_ids.size(); ++i)
    expect(token_ids.data()[i] >= 0 && (size_t(token_ids.data()[i]) + 1) * row <= table.size(),
           "a token id lies outside the table");
  StepView step{};
  step.token_ids = token_ids.data();
  step.tokens = int(token_ids.size());
  const EmbedArgs args{span_of(table).data(), type,
                       input(out.data(), Elem::f32, int64_t(out.shape(1)))};
  Pool pool(threads, false);
  pool.run([&](Worker& worker) { embed(args, step, worker); });
}

void run_argmax(const FloatRows& x, MutableInts out, int threads) {
  const int64_t rows = int64_t(x.shape(0)), cols = int64_t(x.shape(1));
  expect(int64_t(out.size()) == rows, "one result a row");
  expect(cols >= 1 && cols <= INT32_MAX, "rows have at least one column, and a 32-bit result");
  std::vector<ArgmaxPartial> partials(size_t(argmax_partials(rows, cols)));
  const ArgmaxArgs args{input(x.data(), Elem::f32, cols), input(out.data(), Elem::i32, 1),
                        partials.data()};
  Pool pool(threads, false);
  pool.run([&](Worker& worker) { argmax(args, rows, worker); });
}

// parts: (rows as bytes of [count, k], count), joined, or gate and up with an activation.
void run_linear(const std::vector<std::pair<Bytes, int64_t>>& parts, const std::string& elem,
                int64_t k, std::optional<Floats> bias, const std::string& gate, const Bytes& x,
                const std::string& x_elem, MutableBytes out, const std::string& out_elem,
                int threads) {
  const Elem type = parse_float_elem(elem), in = parse_activation_elem(x_elem),
             to = parse_activation_elem(out_elem);
  const Activation activation = parse_activation(gate);
  const bool gated = activation != Activation::none;
  int64_t total = 0;
  for (const auto& [bytes, count] : parts) {
    expect(count >= 1 && rows_in(bytes.size(), k, type) == count, "a part has the wrong size");
    total += count;
  }
  expect(!parts.empty(), "a matrix has parts");
  expect(!gated || (parts.size() == 2 && parts[0].second == parts[1].second),
         "a gated matrix has two parts of one size");
  const int64_t n = gated ? total / 2 : total;
  const int64_t rows = rows_in(x.size(), k, in);
  expect(rows_in(out.size(), n, to) == rows, "the output has the wrong size");
  expect(!bias || int64_t(bias->size()) == total, "a bias has one number a row of the parts");

  Pool pool(threads, false);
  Memory panels(packed_bytes(type, n, k, gated));
  const PackedMatrix matrix{type, n, k, gated, panels.data(), bias ? bias->data() : nullptr};
  int64_t first = 0;
  for (const auto& [bytes, count] : parts) {
    const PartPlace place = gated ? gated_part(first != 0) : joined_part(first, count, n);
    pool.run([&, &bytes = bytes, &count = count](Worker& worker) {
      pack_part(type, bytes.data(), count, k, place, panels.data(), worker);
    });
    first += count;
  }
  pool.reserve_scratch(linear_scratch_bytes(matrix, rows));
  const Array a = input(x.data(), in, k), y = input(out.data(), to, n);
  const Memory shared(linear_shared_bytes(matrix, rows));
  pool.run([&](Worker& worker) {
    linear(matrix, a, y, rows, activation, shared.data(), worker);
  });
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("elementwise", &elementwise, "function"_a, exact("x"));
  m.def("reduce", &reduce, exact("x"));
  m.def("convert", &convert, exact("x"), "from_elem"_a, exact("out"), "to_elem"_a);
  m.def("add_norm", &run_add_norm, exact("residual"), exact("delta").none(), exact("weight"),
        "eps"_a, exact("out"), "elem"_a, "threads"_a);
  m.def("embed", &run_embed, exact("token_ids"), exact("table"), "elem"_a, exact("out"),
        "threads"_a);
  m.def("argmax", &run_argmax, exact("x"), exact("out"), "threads"_a);
  m.def("linear", &run_linear, nb::kw_only(), exact("parts"), "elem"_a, "k"_a, exact("bias").none(),
        "gate"_a, exact("x"), "x_elem"_a, exact("out"), "out_elem"_a, "threads"_a);
  bind_attention(m);
  bind_quantized_linear(m);
}

}  // namespace penstock
