// The ops of a penstock::Executor in Python, one call to append each.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind_executor.h"
#include "bindings.h"

namespace penstock {

using namespace nb::literals;

namespace {

Scores parse_scores(std::string_view name) {
  if (name == "softmax") return Scores::softmax;
  if (name == "softmax_chosen") return Scores::softmax_chosen;
  if (name == "sigmoid") return Scores::sigmoid;
  if (name == "sparsemixer") return Scores::sparsemixer;
  throw std::invalid_argument("no scores of experts are called '" + std::string(name) + "'");
}

// clamp: limit and alpha.
std::vector<ColumnRange> rank_columns(const std::vector<std::pair<int64_t, int64_t>>& ranks) {
  std::vector<ColumnRange> columns;
  for (const auto& [first, end] : ranks) columns.push_back({first, end});
  return columns;
}

Gating parse_gating(std::string_view name, std::optional<std::pair<float, float>> clamp) {
  const Gating plain = parse_activation(name);
  if (!clamp) return plain;
  expect(plain.activation == Activation::silu && clamp->first >= 0,
         "a clamped gate is silu, and its limit no negative number");
  return Gating::clamped_swiglu(clamp->first, clamp->second);
}

}  // namespace

void bind_ops(nb::class_<PyExecutor>& executor) {
  executor
      .def(
          "append_linear",
          [](PyExecutor& self, MatrixId matrix, std::optional<ConstantId> bias, BufferId x,
             BufferId out, const std::string& gate, std::optional<std::pair<float, float>> clamp) {
            self.get().append_linear(matrix, bias.value_or(kNone), x, out,
                                     parse_gating(gate, clamp));
          },
          "matrix"_a, "bias"_a.none(), "x"_a, "out"_a, "gate"_a, "clamp"_a = nb::none())
      .def(
          "append_route",
          [](PyExecutor& self, BufferId logits, BufferId ids, BufferId shares,
             std::optional<ConstantId> choice_bias, std::optional<ConstantId> share_scale,
             const std::string& scores, bool normalize, float normalize_eps,
             float normalize_least, float scale, int groups, int groups_chosen, bool top2,
             float jitter) {
            self.get().append_route(logits, ids, shares, choice_bias.value_or(kNone),
                                    share_scale.value_or(kNone),
                                    {parse_scores(scores), normalize, normalize_eps,
                                     normalize_least, scale, groups, groups_chosen, top2, jitter});
          },
          nb::kw_only(), "logits"_a, "ids"_a, "shares"_a, "choice_bias"_a.none(),
          "share_scale"_a.none(), "scores"_a,
          "normalize"_a, "normalize_eps"_a, "normalize_least"_a, "scale"_a, "groups"_a,
          "groups_chosen"_a, "top2"_a, "jitter"_a)
      .def(
          "append_expert_linear",
          [](PyExecutor& self, MatrixId matrix, std::optional<ConstantId> bias, BufferId x,
             BufferId ids, BufferId out, const std::string& gate,
             std::optional<std::pair<float, float>> clamp) {
            self.get().append_expert_linear(matrix, bias.value_or(kNone), x, ids, out,
                                            parse_gating(gate, clamp));
          },
          "matrix"_a, "bias"_a.none(), "x"_a, "ids"_a, "out"_a, "gate"_a, "clamp"_a = nb::none())
      .def(
          "append_combine_experts",
          [](PyExecutor& self, BufferId x, std::optional<BufferId> shares, BufferId out) {
            self.get().append_combine_experts(x, shares.value_or(kNone), out);
          },
          "x"_a, "shares"_a.none(), "out"_a)
      .def(
          "append_scale_rows",
          [](PyExecutor& self, BufferId x, BufferId by, BufferId out, bool sigmoid) {
            self.get().append_scale_rows(x, by, out, sigmoid);
          },
          "x"_a, "by"_a, "out"_a, "sigmoid"_a)
      .def(
          "append_embed",
          [](PyExecutor& self, ConstantId table, const std::string& elem, BufferId out,
             int64_t rows) { self.get().append_embed(table, parse_elem(elem), out, rows); },
          "table"_a, "elem"_a, "out"_a, "rows"_a)
      .def(
          "append_packed_embed",
          [](PyExecutor& self, MatrixId table, BufferId out) {
            self.get().append_packed_embed(table, out);
          },
          "table"_a, "out"_a)
      .def(
          "append_add_positions",
          [](PyExecutor& self, BufferId x, BufferId out, ConstantId table,
             const std::string& elem, int64_t rows, int64_t offset) {
            self.get().append_add_positions(x, out, table, parse_elem(elem), rows, offset);
          },
          nb::kw_only(), "x"_a, "out"_a, "table"_a, "elem"_a, "rows"_a, "offset"_a)
      .def(
          "append_add_norm",
          [](PyExecutor& self, BufferId residual, std::optional<BufferId> delta, BufferId out,
             std::optional<ConstantId> weight, float eps) {
            self.get().append_add_norm(residual, delta.value_or(kNone), out,
                                       weight.value_or(kNone), eps);
          },
          "residual"_a, "delta"_a.none(), "out"_a, "weight"_a.none(), "eps"_a)
      .def(
          "append_rms_norm",
          [](PyExecutor& self, BufferId x, BufferId out, std::optional<ConstantId> weight,
             float eps) {
            self.get().append_rms_norm(x, out, weight.value_or(kNone), eps);
          },
          "x"_a, "out"_a, "weight"_a.none(), "eps"_a)
      .def(
          "append_layer_norm",
          [](PyExecutor& self, BufferId x, BufferId out, std::optional<ConstantId> weight,
             std::optional<ConstantId> bias, float eps) {
            self.get().append_layer_norm(x, out, weight.value_or(kNone), bias.value_or(kNone),
                                         eps);
          },
          "x"_a, "out"_a, "weight"_a.none(), "bias"_a.none(), "eps"_a)
      .def(
          "append_head_norm",
          [](PyExecutor& self, BufferId x, BufferId out, int head_dim,
             std::optional<ConstantId> weight, float eps, std::optional<ConstantId> bias,
             bool layer, bool each_head) {
            self.get().append_head_norm(x, out,
                                        {head_dim, weight.value_or(kNone), bias.value_or(kNone),
                                         eps, layer, each_head});
          },
          "x"_a, "out"_a, "head_dim"_a, "weight"_a.none(), "eps"_a, nb::kw_only(),
          "bias"_a.none() = nb::none(), "layer"_a = false, "each_head"_a = false)
      .def(
          "append_rope",
          [](PyExecutor& self, BufferId x, BufferId out, int head_dim, ConstantId cos,
             ConstantId sin, int rope_dim, bool interleaved) {
            self.get().append_rope(x, out, head_dim, {cos, sin, rope_dim, interleaved});
          },
          nb::kw_only(), "x"_a, "out"_a, "head_dim"_a, "cos"_a, "sin"_a, "rope_dim"_a,
          "interleaved"_a)
      .def(
          "append_kv_write",
          [](PyExecutor& self, int layer, BufferId k, std::optional<BufferId> v) {
            self.get().append_kv_write(layer, k, v.value_or(kNone));
          },
          nb::kw_only(), "layer"_a, "k"_a, "v"_a.none())
      .def(
          "append_head_linear",
          [](PyExecutor& self, MatrixId matrix, int heads, BufferId x, BufferId out) {
            self.get().append_head_linear(matrix, heads, x, out);
          },
          nb::kw_only(), "matrix"_a, "heads"_a, "x"_a, "out"_a)
      .def(
          "append_adapter_down",
          [](PyExecutor& self, BufferId x, BufferId low, int64_t slots, int64_t rank, int64_t parts,
             const std::string& elem, ConstantId weights, ConstantId scales) {
            self.get().append_adapter_down(
                {x, low, slots, rank, parts, parse_elem(elem), weights, scales});
          },
          nb::kw_only(), "x"_a, "low"_a, "slots"_a, "rank"_a, "parts"_a, "elem"_a, "weights"_a,
          "scales"_a)
      .def(
          "append_adapter_up",
          [](PyExecutor& self, BufferId low, BufferId out, int64_t slots, int64_t rank,
             const std::vector<int64_t>& columns, int64_t at, int64_t parts,
             const std::string& elem, ConstantId weights, ConstantId scales) {
            self.get().append_adapter_up(
                {low, out, slots, rank, columns, at, parts, parse_elem(elem), weights, scales});
          },
          nb::kw_only(), "low"_a, "out"_a, "slots"_a, "rank"_a, "columns"_a, "at"_a, "parts"_a,
          "elem"_a, "weights"_a, "scales"_a)
      .def(
          "append_rope_write",
          [](PyExecutor& self, int layer, BufferId qkv, BufferId q, int heads, ConstantId cos,
             ConstantId sin, int rope_dim, bool interleaved, std::optional<ConstantId> q_norm,
             std::optional<ConstantId> k_norm, float eps) {
            self.get().append_rope_write({layer, qkv, q, heads,
                                          {cos, sin, rope_dim, interleaved},
                                          q_norm.value_or(kNone), k_norm.value_or(kNone), eps});
          },
          nb::kw_only(), "layer"_a, "qkv"_a, "q"_a, "heads"_a, "cos"_a, "sin"_a, "rope_dim"_a,
          "interleaved"_a, "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a)
      .def(
          "append_attention",
          [](PyExecutor& self, int layer, BufferId q, BufferId out, int heads, float scale,
             int window, std::optional<float> softcap, std::optional<ConstantId> slopes,
             std::optional<ConstantId> sinks, int chunk, float slope_factor) {
            expect(!softcap || *softcap > 0, "attention: a soft cap must be positive");
            self.get().append_attention({layer, q, out, heads, scale, window,
                                         softcap.value_or(0.0f), slopes.value_or(kNone),
                                         sinks.value_or(kNone), chunk, slope_factor});
          },
          nb::kw_only(), "layer"_a, "q"_a, "out"_a, "heads"_a, "scale"_a, "window"_a,
          "softcap"_a.none(), "slopes"_a.none(), "sinks"_a.none(), "chunk"_a = 0,
          "slope_factor"_a = 0.0f)
      .def(
          "append_short_conv",
          [](PyExecutor& self, int layer, BufferId x, BufferId out, ConstantId taps,
             std::optional<ConstantId> bias, int kernel) {
            self.get().append_short_conv(layer, x, out, taps, bias.value_or(kNone), kernel);
          },
          nb::kw_only(), "layer"_a, "x"_a, "out"_a, "taps"_a, "bias"_a.none(), "kernel"_a)
      .def(
          "append_select_rows",
          [](PyExecutor& self, BufferId x, BufferId out, int64_t first) {
            self.get().append_select_rows(x, out, first);
          },
          "x"_a, "out"_a, "first"_a)
      .def(
          "append_features",
          [](PyExecutor& self, BufferId out, int64_t first) {
            self.get().append_features(out, first);
          },
          "out"_a, "first"_a)
      .def(
          "append_join",
          [](PyExecutor& self, const std::vector<BufferId>& xs, BufferId out, int heads) {
            self.get().append_join(xs, out, heads);
          },
          "xs"_a, "out"_a, "heads"_a = 1)
      .def(
          "append_gather_columns",
          [](PyExecutor& self, BufferId x, const std::vector<BufferId>& outs,
             const std::vector<ConstantId>& orders, std::optional<BufferId> ids) {
            self.get().append_gather_columns(x, outs, orders, ids.value_or(kNone));
          },
          "x"_a, "outs"_a, "orders"_a, "ids"_a = nb::none())
      .def(
          "append_turn_rows",
          [](PyExecutor& self, BufferId x, BufferId out, ConstantId signs, int64_t doubled,
             int64_t base, std::optional<ConstantId> base_matrix) {
            self.get().append_turn_rows(x, out,
                                        {signs, base_matrix.value_or(kNone), doubled, base});
          },
          nb::kw_only(), "x"_a, "out"_a, "signs"_a, "doubled"_a, "base"_a, "base_matrix"_a.none())
      .def(
          "append_turn_back",
          [](PyExecutor& self, BufferId x, std::optional<BufferId> second, BufferId out,
             int64_t first, float by, ConstantId scale, std::optional<ConstantId> bias,
             ConstantId signs, int64_t doubled, int64_t base,
             std::optional<ConstantId> base_matrix) {
            self.get().append_turn_back(x, second.value_or(kNone), out, first, by, scale,
                                        bias.value_or(kNone),
                                        {signs, base_matrix.value_or(kNone), doubled, base});
          },
          nb::kw_only(), "x"_a, "second"_a.none(), "out"_a, "first"_a, "by"_a, "scale"_a,
          "bias"_a.none(), "signs"_a, "doubled"_a, "base"_a, "base_matrix"_a.none())
      .def(
          "append_columns",
          [](PyExecutor& self, BufferId x, BufferId out, int64_t first) {
            self.get().append_columns(x, out, first);
          },
          "x"_a, "out"_a, "first"_a)
      .def(
          "append_add_activated",
          [](PyExecutor& self, std::optional<BufferId> x, BufferId y, BufferId out,
             const std::string& activation) {
            self.get().append_add_activated(x.value_or(kNone), y, out,
                                            parse_activation(activation));
          },
          "x"_a.none(), "y"_a, "out"_a, "activation"_a)
      .def(
          "append_gate",
          [](PyExecutor& self, BufferId gate, BufferId up, BufferId out,
             const std::string& activation, std::optional<std::pair<float, float>> clamp) {
            self.get().append_gate(gate, up, out, parse_gating(activation, clamp));
          },
          "gate"_a, "up"_a, "out"_a, "activation"_a, "clamp"_a = nb::none())
      .def(
          "append_scale",
          [](PyExecutor& self, BufferId x, BufferId out, float factor) {
            self.get().append_scale(x, out, factor);
          },
          "x"_a, "out"_a, "factor"_a)
      .def(
          "append_scale_by",
          [](PyExecutor& self, BufferId x, BufferId out, ConstantId factor) {
            self.get().append_scale_by(x, out, factor);
          },
          "x"_a, "out"_a, "factor"_a)
      .def(
          "append_soft_cap",
          [](PyExecutor& self, BufferId x, BufferId out, float cap) {
            self.get().append_soft_cap(x, out, cap);
          },
          "x"_a, "out"_a, "cap"_a)
      .def(
          "append_xielu",
          [](PyExecutor& self, BufferId x, BufferId out, ConstantId p, ConstantId n,
             ConstantId beta, ConstantId eps) {
            self.get().append_xielu(x, out, p, n, beta, eps);
          },
          nb::kw_only(), "x"_a, "out"_a, "p"_a, "n"_a, "beta"_a, "eps"_a)
      .def(
          "append_clamp",
          [](PyExecutor& self, BufferId x, BufferId out, float limit) {
            self.get().append_clamp(x, out, limit);
          },
          "x"_a, "out"_a, "limit"_a)
      .def(
          "append_scale_by_position",
          [](PyExecutor& self, BufferId x, BufferId out, ConstantId factors, int64_t period,
             int64_t offset) {
            self.get().append_scale_by_position(x, out, factors, period, offset);
          },
          nb::kw_only(), "x"_a, "out"_a, "factors"_a, "period"_a, "offset"_a)
      .def(
          "append_state_conv",
          [](PyExecutor& self, int layer, BufferId x, BufferId out, ConstantId weight,
             std::optional<ConstantId> bias, int kernel, bool silu) {
            self.get().append_state_conv(
                {layer, x, out, weight, bias.value_or(kNone), kernel, silu});
          },
          nb::kw_only(), "layer"_a, "x"_a, "out"_a, "weight"_a, "bias"_a.none(), "kernel"_a,
          "silu"_a)
      .def(
          "append_gated_delta",
          [](PyExecutor& self, int layer, BufferId qkv, BufferId ba, BufferId out,
             ConstantId a_log, ConstantId dt_bias, int key_heads, bool tiled) {
            self.get().append_gated_delta({layer, qkv, ba, out, a_log, dt_bias, key_heads, tiled});
          },
          nb::kw_only(), "layer"_a, "qkv"_a, "ba"_a, "out"_a, "a_log"_a, "dt_bias"_a,
          "key_heads"_a, "tiled"_a)
      .def(
          "append_selective_scan",
          [](PyExecutor& self, int layer, BufferId xbc, BufferId dt, BufferId out,
             ConstantId a_log, ConstantId dt_bias, ConstantId d, int groups,
             std::pair<float, float> dt_limits) {
            self.get().append_selective_scan({layer, xbc, dt, out, a_log, dt_bias, d, groups,
                                              dt_limits.first, dt_limits.second});
          },
          nb::kw_only(), "layer"_a, "xbc"_a, "dt"_a, "out"_a, "a_log"_a, "dt_bias"_a, "d"_a,
          "groups"_a, "dt_limits"_a)
      .def(
          "append_gated_norm",
          [](PyExecutor& self, BufferId x, BufferId gate, BufferId out, ConstantId weight,
             float eps, int64_t size, bool gate_first, bool each_part) {
            self.get().append_gated_norm(
                {x, gate, out, weight, eps, size, gate_first, each_part});
          },
          nb::kw_only(), "x"_a, "gate"_a, "out"_a, "weight"_a, "eps"_a, "size"_a, "gate_first"_a,
          "each_part"_a)
      .def(
          "append_all_gather",
          [](PyExecutor& self, BufferId x, BufferId out,
             const std::vector<std::pair<int64_t, int64_t>>& ranks) {
            self.get().append_all_gather(x, out, rank_columns(ranks));
          },
          "x"_a, "out"_a, "ranks"_a)
      .def(
          "append_gather_to_first",
          [](PyExecutor& self, BufferId x, std::optional<BufferId> out,
             const std::vector<std::pair<int64_t, int64_t>>& ranks) {
            self.get().append_gather_to_first(x, out.value_or(kNone), rank_columns(ranks));
          },
          "x"_a, "out"_a.none(), "ranks"_a)
      .def(
          "append_argmax",
          [](PyExecutor& self, BufferId x, BufferId out) { self.get().append_argmax(x, out); },
          "x"_a, "out"_a);
}

}  // namespace penstock
