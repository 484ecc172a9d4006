// An executor's states, and its ops that work on them.
#include <cmath>
#include <string>

#include "executor.h"
#include "kernels/taps.h"
#include "refuse.h"
#include "sizes.h"

namespace penstock {

void Executor::place_states(const StateSlots& states) {
  if (states.slots < 0 || states.log < 0 || (states.slots == 0) != states.layers.empty())
    refuse("layers that keep a state, and they alone, have slots for it");
  if (states.slots == 0) return;
  if (states.ring_elem == Elem::i32 || states.ring_elem == Elem::i8)
    refuse("a convolution keeps float32, bfloat16 or float16");
  if (states.slot_bytes % 64 != 0) refuse("slots of states are whole cache lines");
  state_memory_ = Memory(size_t(checked_product(
      "states", {int64_t(states.slot_bytes), int64_t(states.slots)})));
  for (const StateGeometry& g : states.layers) {
    if (g.heads < 1 || g.rows < 1 || g.rows > kMostTileRows || g.columns < 1)
      refuse("a state has heads of 1 to " + std::to_string(kMostTileRows) +
             " rows, and one column or more");
    if (g.ring_rows < 1 || g.ring_columns < 1) refuse("a state has a ring of one row or more");
    if (g.log_columns < 1) refuse("rows of a log have one column or more");
    const int64_t tiles = checked_product(
        "a state", {g.heads, tiles_of(g.columns), g.rows, int64_t(kTileColumns * sizeof(float))});
    const int64_t log = checked_product(
        "a log", {states.log, g.log_columns, int64_t(sizeof(float))});
    const int64_t ring = checked_product(
        "a ring", {g.ring_rows, g.ring_columns, int64_t(elem_bytes(states.ring_elem))});
    const int64_t slot = int64_t(states.slot_bytes);
    if (g.tiles % 64 != 0 || g.ring % 64 != 0 || g.log % 64 != 0 ||
        !lies_within(int64_t(g.tiles), tiles, slot) ||
        !lies_within(int64_t(g.ring), ring, slot) || !lies_within(int64_t(g.log), log, slot))
      refuse("a layer's state lies outside its slot, or not on a cache line");
    if (int64_t(g.heads) * tiles_of(g.columns) > Tickets::kMostTasks / shape_.max_sequences ||
        g.ring_columns > Tickets::kMostTasks / shape_.max_sequences)
      refuse("a step has more states than threads can share");
    states_.push_back(
        {state_memory_.data(), states.slot_bytes, g, states.ring_elem, states.log});
  }
}

namespace {

void check_log(const StateGeometry& at, int64_t columns) {
  if (at.log_columns < columns)
    refuse("rows of a log have " + std::to_string(at.log_columns) + " columns where " +
           std::to_string(columns) + " are needed");
}

}  // namespace

const Array& Executor::token_floats(BufferId id, int64_t cols, const char* what) const {
  const Array& array = typed(id, {Elem::f32}, what);
  if (array.cols != cols || bound(id).rows != RowKind::tokens)
    refuse(std::string(what) + " has " + std::to_string(cols) + " columns of token rows, not " +
           std::to_string(array.cols));
  return array;
}

void Executor::append_state_conv(const StateConvSpec& s) {
  StateConvArgs args{};
  args.state = state(s.layer);
  const int64_t cols = args.state.at.ring_columns;
  args.x = token_floats(s.x, cols, "the input of a convolution");
  args.out = token_floats(s.out, cols, "the output of a convolution");
  if (s.kernel < 2 || s.kernel > kMostTaps ||
      args.state.at.ring_rows < s.kernel - 1 + state_log_)
    refuse("a convolution sees 2 to " + std::to_string(kMostTaps) +
           " tokens, and the state keeps all but the last, and those that may be taken back; it " +
           "keeps " + std::to_string(args.state.at.ring_rows) + " and is to see " +
           std::to_string(s.kernel));
  args.weight = floats(s.weight, checked_product("a convolution", {s.kernel, cols}),
                       "a convolution's weight");
  args.bias = optional_floats(s.bias, cols, "a convolution's bias");
  args.kernel = s.kernel;
  args.silu = s.silu;
  require_apart(s.x, s.out);
  ops_.push_back(StateConvOp{args});
}

void Executor::append_gated_delta(const GatedDeltaSpec& s) {
  GatedDeltaArgs args{};
  args.state = state(s.layer);
  const StateGeometry& at = args.state.at;
  if (s.key_heads < 1 || at.heads % s.key_heads != 0)
    refuse("value heads share key heads evenly");
  const int64_t keys = int64_t(s.key_heads) * at.rows, values = int64_t(at.heads) * at.columns;
  args.qkv = token_floats(s.qkv, 2 * keys + values, "joined queries, keys and values");
  args.ba = token_floats(s.ba, 2 * int64_t(at.heads), "what betas and decays are made of");
  args.out = token_floats(s.out, values, "the output of a gated delta net");
  args.a_log = floats(s.a_log, at.heads, "the rates of decay");
  args.dt_bias = floats(s.dt_bias, at.heads, "the bias of decay");
  args.key_heads = s.key_heads;
  args.tiled = s.tiled;
  check_log(at, keys + values + 2 * int64_t(at.heads));
  for (const BufferId in : {s.qkv, s.ba}) require_apart(in, s.out);
  pool_.reserve_scratch(scan_scratch_bytes(args.state));
  ops_.push_back(GatedDeltaOp{args});
}

void Executor::append_selective_scan(const SelectiveScanSpec& s) {
  SelectiveScanArgs args{};
  args.state = state(s.layer);
  const StateGeometry& at = args.state.at;
  if (s.groups < 1 || at.heads % s.groups != 0) refuse("heads share groups evenly");
  if (!(s.least_step <= s.most_step)) refuse("the limits of time steps ascend");
  const int64_t width = int64_t(at.heads) * at.columns;
  args.xbc = token_floats(s.xbc, width + 2 * int64_t(s.groups) * at.rows, "joined x, B and C");
  args.dt = token_floats(s.dt, at.heads, "time steps");
  args.out = token_floats(s.out, width, "the output of a selective scan");
  args.a_log = floats(s.a_log, at.heads, "the rates of decay");
  args.dt_bias = floats(s.dt_bias, at.heads, "the bias of time steps");
  args.d = floats(s.d, at.heads, "what x is multiplied by");
  args.groups = s.groups;
  args.least_step = s.least_step;
  args.most_step = s.most_step;
  check_log(at, width + int64_t(s.groups) * at.rows + at.heads);
  pool_.reserve_scratch(scan_scratch_bytes(args.state));
  for (const BufferId in : {s.xbc, s.dt}) require_apart(in, s.out);
  ops_.push_back(SelectiveScanOp{args});
}

void Executor::append_gated_norm(const GatedNormSpec& s) {
  const RowKind rows = check_elements({s.x, s.gate}, s.out);
  GatedNormArgs args{};
  args.x = bound(s.x).array;
  args.gate = bound(s.gate).array;
  args.out = bound(s.out).array;
  if (s.size < 1 || args.x.cols % s.size != 0) refuse("a gated norm is of whole parts of a row");
  if (args.x.cols / s.size > Tickets::kMostTasks / most_rows(rows))
    refuse("a gated norm has more parts than threads can share");
  args.weight = floats(s.weight, s.each_part ? args.x.cols : s.size, "a gated norm's weight");
  args.size = s.size;
  args.each_part = s.each_part;
  args.gate_first = s.gate_first;
  args.eps = s.eps;
  pool_.reserve_scratch(gated_norm_scratch_bytes(args));
  ops_.push_back(GatedNormOp{args, rows});
}

}  // namespace penstock
