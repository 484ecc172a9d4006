// An executor's ops that work on the heads of tokens, and on the cache.
#include <cmath>
#include <string>

#include "executor.h"
#include "kernels/taps.h"
#include "refuse.h"

namespace penstock {
namespace {

void check_shares(int64_t rows, int64_t heads) {
  if (heads > Tickets::kMostTasks / rows)
    refuse("a step of " + std::to_string(rows) + " tokens has more than " +
           std::to_string(Tickets::kMostTasks) + " heads; lower the number of tokens");
}

}  // namespace

void Executor::check_heads(BufferId x, BufferId out, int head_dim) const {
  const Array& in = typed(x, {Elem::f32}, "heads");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "an output of heads");
  if (head_dim < 1 || head_dim > kMostHeadDim)
    refuse("heads have 1 to " + std::to_string(kMostHeadDim) + " components, not " +
           std::to_string(head_dim));
  if (in.cols % head_dim != 0 || y.cols != in.cols || bound(x).rows != bound(out).rows)
    refuse("input and output of an op of heads are not the same whole heads");
  check_shares(most_rows(bound(x).rows), in.cols / head_dim);
  if (x != out) require_apart(x, out);  // in place, or elsewhere
}

Rotation Executor::rotation(const RotationSpec& s, int head_dim) const {
  if (s.dim < 0 || s.dim > head_dim || s.dim % 2 != 0)
    refuse("rotated components must be an even number within the head");
  const int64_t angles = int64_t(shape_.max_positions) * (s.dim / 2);
  return {floats(s.cos, angles, "a cosine table"), floats(s.sin, angles, "a sine table"), s.dim,
          s.interleaved};
}

void Executor::append_head_norm(BufferId x, BufferId out, const HeadNormSpec& s) {
  check_heads(x, out, s.head_dim);
  if (!s.layer && s.bias != kNone) refuse("a head's RMS norm has no bias");
  const int64_t count = s.each_head ? bound(x).array.cols : s.head_dim;
  ops_.push_back(HeadNormOp{{bound(x).array, bound(out).array,
                             optional_floats(s.weight, count, "a head norm's weight"),
                             optional_floats(s.bias, count, "a head norm's bias"), s.head_dim,
                             s.eps, s.layer, s.each_head},
                            bound(x).rows});
}

void Executor::append_rope(BufferId x, BufferId out, int head_dim, const RotationSpec& spec) {
  check_heads(x, out, head_dim);
  if (bound(x).rows != RowKind::tokens) refuse("rotation works on token rows");
  ops_.push_back(
      RopeOp{{bound(x).array, bound(out).array, head_dim, rotation(spec, head_dim)}});
}

void Executor::append_kv_write(int layer, BufferId k, BufferId v) {
  KvWriteArgs args{attended(layer), typed(k, {Elem::f32}, "keys"), {}};
  if (args.kv.latent() != (v == kNone))
    refuse("values are written where the layer has them beside its keys, and there alone");
  if (v != kNone) args.v = typed(v, {Elem::f32}, "values");
  const int64_t cols = int64_t(args.kv.kv_heads) * args.kv.head_dim;
  if (args.k.cols != cols || (v != kNone && args.v.cols != cols))
    refuse("keys and values do not fit the layer's heads");
  if (bound(k).rows != RowKind::tokens || (v != kNone && bound(v).rows != RowKind::tokens))
    refuse("the cache is written for token rows");
  check_shares(shape_.max_tokens, 2 * int64_t(args.kv.kv_heads));
  ops_.push_back(KvWriteOp{args});
}

void Executor::append_rope_write(const RopeWriteSpec& s) {
  RopeWriteArgs args{};
  args.kv = attended(s.layer);
  const int dim = args.kv.head_dim;
  if (args.kv.latent()) refuse("a cache of latents has no values to write");
  args.qkv = typed(s.qkv, {Elem::f32}, "joined queries, keys and values");
  args.q = typed(s.q, {Elem::f32, Elem::bf16}, "rotated queries");
  args.heads = s.heads;
  const int64_t units = s.heads + 2 * int64_t(args.kv.kv_heads);
  if (s.heads < 1 || args.q.cols != int64_t(s.heads) * dim || args.qkv.cols != units * dim)
    refuse("queries, keys and values do not fit the layer's heads");
  check_shares(shape_.max_tokens, units);
  if (bound(s.qkv).rows != RowKind::tokens || bound(s.q).rows != RowKind::tokens)
    refuse("rotation works on token rows");
  require_apart(s.qkv, s.q);
  args.rotation = rotation(s.rotation, dim);
  args.q_norm = optional_floats(s.q_norm, dim, "a query norm");
  args.k_norm = optional_floats(s.k_norm, dim, "a key norm");
  args.eps = s.eps;
  ops_.push_back(RopeWriteOp{args});
}

void Executor::append_attention(const AttentionSpec& s) {
  AttentionArgs args{};
  args.kv = attended(s.layer);
  args.q = typed(s.q, {Elem::f32, Elem::bf16}, "queries");
  args.out = typed(s.out, {Elem::f32, Elem::bf16}, "attention's output");
  args.heads = s.heads;
  args.scale = s.scale;
  args.window = s.window;
  args.chunk = s.chunk;
  if (s.heads < 1 || args.q.cols != int64_t(s.heads) * args.kv.head_dim ||
      args.out.cols != int64_t(s.heads) * args.kv.out_dim())
    refuse("queries and output of attention do not fit the layer's heads");
  if (bound(s.q).rows != RowKind::tokens || bound(s.out).rows != RowKind::tokens)
    refuse("attention works on token rows");
  if (!(s.scale > 0)) refuse("attention: the scale must be positive");
  if (!(s.softcap >= 0)) refuse("attention: a soft cap must be positive, or 0 for none");
  args.softcap = s.softcap;
  args.slopes = optional_floats(s.slopes, s.heads, "attention's slopes");
  args.sinks = optional_floats(s.sinks, s.heads, "attention's sinks");
  if (!std::isfinite(s.slope_factor) || (s.slope_factor != 0 && !args.slopes))
    refuse("attention: a factor of slopes is a finite number, where there are slopes");
  args.slope_factor = s.slope_factor;
  require_apart(s.q, s.out);
  const AttentionShape shape{s.heads, args.kv.kv_heads, args.kv.head_dim, s.window,
                             args.kv.value_dim, s.chunk};
  AttentionWork* work = work_for(shape);
  pool_.reserve_scratch(attention_scratch_bytes(shape));
  ops_.push_back(AttentionOp{args, work});
}

void Executor::append_short_conv(int layer, BufferId x, BufferId out, ConstantId taps,
                                 ConstantId bias, int kernel) {
  ShortConvArgs args{kv(layer), typed(x, {Elem::f32}, "what is convolved"),
                     typed(out, {Elem::f32}, "a convolution's output"), nullptr, nullptr, kernel};
  const int64_t cols = args.x.cols;
  if (!args.kv.rows || args.kv.head_dim != cols || args.out.cols != cols)
    refuse("a convolution's input, output and cached rows are not of one width");
  if (bound(x).rows != RowKind::tokens || bound(out).rows != RowKind::tokens)
    refuse("a convolution works on token rows");
  if (kernel < 2 || kernel > kMostTaps || (kernel > args.kv.rows && args.kv.rows < kBlockSize))
    refuse("a convolution has 2 to " + std::to_string(kMostTaps) +
           " taps, and as many rows in each block or all of it");
  if (convolved_pieces(cols) > Tickets::kMostTasks / shape_.max_sequences)
    refuse("a convolution has more sequences and columns than threads can share");
  require_apart(x, out);
  args.taps = floats(taps, cols * kernel, "the taps of a convolution");
  args.bias = optional_floats(bias, cols, "a convolution's bias");
  branches_ = false;
  ops_.push_back(ShortConvOp{args});
}

}  // namespace penstock
