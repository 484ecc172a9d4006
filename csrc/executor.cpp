#include "executor.h"

#include <algorithm>
#include <cstring>

#include "refuse.h"

namespace penstock {

Executor::Executor(const ExecutorShape& shape, const std::vector<KvGeometry>& kv_layers)
    : shape_(shape), pool_(shape.threads < 1 ? 1 : shape.threads, shape.cpus, shape.crowded) {
  const int least_blocks = kv_layers.empty() ? 0 : 1;
  if (shape.threads < 1 || shape.num_blocks < least_blocks || shape.max_tokens < 1 ||
      shape.max_logits < 1 || shape.max_sequences < 1 || shape.max_positions < 1 ||
      shape.vocabulary < 1)
    refuse("every bound of an executor must be at least 1");
  if (int64_t(shape.num_blocks) * kBlockSize > INT32_MAX)
    refuse("slots are 32-bit: at most 67,108,863 KV blocks");
  arena_ = std::make_shared<Memory>(shape.arena_bytes);
  for (const KvGeometry& g : kv_layers) {
    if (g.kv_heads < 1 || g.head_dim < 1) refuse("a KV layer needs heads and a head size");
    KvLayer layer{nullptr, shape.kv_elem, g.kv_heads, g.head_dim};
    Memory memory(layer.block_bytes() * size_t(shape.num_blocks));
    layer.base = memory.data();
    kv_.push_back({layer, std::move(memory)});
  }
}

// --- building ----------------------------------------------------------------------------------

BufferId Executor::add_buffer(size_t offset, Elem elem, int64_t cols, size_t row_bytes,
                              RowKind rows) {
  const int64_t most = rows == RowKind::tokens ? shape_.max_tokens : shape_.max_logits;
  const size_t element = elem_bytes(elem);
  if (cols < 1 || row_bytes < size_t(cols) * element || row_bytes % element != 0 ||
      offset % 64 != 0 || offset + size_t(most) * row_bytes > arena_->bytes())
    refuse("a buffer lies outside the arena, not on a cache line, or its rows overlap");
  buffers_.push_back({{arena_->data() + offset, elem, cols, int64_t(row_bytes / element)}, rows});
  return BufferId(buffers_.size()) - 1;
}

ConstantId Executor::add_constant(std::span<const std::byte> bytes) {
  constants_.emplace_back(bytes.size());
  const ConstantId id = ConstantId(constants_.size()) - 1;
  fill_constant(id, 0, bytes);
  return id;
}

ConstantId Executor::reserve_constant(size_t bytes) {
  Memory& memory = constants_.emplace_back(bytes);
  regions_.emplace_back(memory.data(), bytes);
  return ConstantId(constants_.size()) - 1;
}

void Executor::fill_constant(ConstantId id, size_t offset, std::span<const std::byte> bytes) {
  if (id < 0 || size_t(id) >= constants_.size()) refuse("no such constant");
  const Memory& memory = constants_[size_t(id)];
  if (offset > memory.bytes() || bytes.size() > memory.bytes() - offset)
    refuse("a part lies outside its constant");
  pool_.run([&](Worker& worker) {
    const Share mine = share(int64_t(bytes.size()), worker);
    std::memcpy(memory.data() + offset + mine.begin, bytes.data() + mine.begin,
                size_t(mine.end - mine.begin));
  });
}

void Executor::append_embed(ConstantId table, Elem elem, BufferId out) {
  const Array& y = typed(out, {Elem::f32}, "an embedding's output");
  if (bound(out).rows != RowKind::tokens) refuse("an embedding's rows are tokens");
  const size_t bytes = size_t(shape_.vocabulary) * size_t(y.cols) * elem_bytes(elem);
  ops_.push_back(EmbedOp{{constant(table, bytes, "an embedding table"), elem, y}});
}

void Executor::append_add_norm(BufferId residual, BufferId delta, BufferId out,
                               ConstantId weight, float eps) {
  AddNormArgs args{};
  args.residual = typed(residual, {Elem::f32}, "a residual");
  if (delta != kNone) args.delta = typed(delta, {Elem::f32}, "a delta");
  args.out = typed(out, {Elem::f32, Elem::bf16}, "a norm's output");
  args.weight = floats(weight, args.residual.cols, "a norm's weight");
  args.eps = eps;
  const RowKind rows = bound(residual).rows;
  if (args.out.cols != args.residual.cols || bound(out).rows != rows ||
      (delta != kNone && (args.delta.cols != args.residual.cols || bound(delta).rows != rows)))
    refuse("residual, delta and output of a norm differ in shape");
  ops_.push_back(AddNormOp{args, rows});
}

RowKind Executor::check_product(int64_t n, int64_t k, bool gated, BufferId x, BufferId out,
                                Activation gate) const {
  const Array& in = typed(x, {Elem::f32, Elem::bf16}, "a matrix product's input");
  const Array& y = typed(out, {Elem::f32, Elem::bf16}, "a matrix product's output");
  const RowKind from = bound(x).rows, to = bound(out).rows;
  const bool narrows = from == RowKind::selected && to == RowKind::logits;
  if (in.cols != k || y.cols != n || (from != to && !narrows))
    refuse("input, matrix and output of a product differ in shape");
  if (gated != (gate != Activation::none)) refuse("a gated matrix needs an activation");
  return to;
}

void Executor::reserve_shared(size_t bytes) {
  if (bytes > shared_.bytes()) shared_ = Memory(bytes);
}

void Executor::reserve_for(const LinearOp& op) {
  std::visit(
      [&](const auto& w) {
        pool_.reserve_scratch(linear_scratch_bytes(w, most_rows(op.rows)));
        reserve_shared(linear_shared_bytes(w, most_rows(op.rows)));
      },
      op.w);
}

void Executor::append_linear(MatrixId id, ConstantId bias, BufferId x, BufferId out,
                             Activation gate) {
  AnyMatrix& any = matrix(id).packed;
  const RowKind rows = std::visit(
      [&](auto& w) {
        const RowKind kind = check_product(w.n, w.k, w.gated, x, out, gate);
        if (bias != kNone) w.bias = floats(bias, w.gated ? 2 * w.n : w.n, "a bias");
        return kind;
      },
      any);
  const LinearOp op{id, any, bound(x).array, bound(out).array, gate, rows};
  reserve_for(op);
  ops_.push_back(op);
}

void Executor::append_rope_write(const RopeWriteSpec& s) {
  RopeWriteArgs args{};
  args.kv = kv(s.layer);
  const int dim = args.kv.head_dim;
  args.qkv = typed(s.qkv, {Elem::f32}, "joined queries, keys and values");
  args.q = typed(s.q, {Elem::f32, Elem::bf16}, "rotated queries");
  args.heads = s.heads;
  if (s.heads < 1 || args.q.cols != int64_t(s.heads) * dim ||
      args.qkv.cols != int64_t(s.heads + 2 * args.kv.kv_heads) * dim)
    refuse("queries, keys and values do not fit the layer's heads");
  if (s.rope_dim < 0 || s.rope_dim > dim || s.rope_dim % 2 != 0)
    refuse("rotated components must be an even number within the head");
  if (bound(s.qkv).rows != RowKind::tokens || bound(s.q).rows != RowKind::tokens)
    refuse("rotation works on token rows");
  const int64_t angles = int64_t(shape_.max_positions) * (s.rope_dim / 2);
  args.cos = floats(s.cos, angles, "a cosine table");
  args.sin = floats(s.sin, angles, "a sine table");
  args.rope_dim = s.rope_dim;
  args.q_norm = s.q_norm == kNone ? nullptr : floats(s.q_norm, dim, "a query norm");
  args.k_norm = s.k_norm == kNone ? nullptr : floats(s.k_norm, dim, "a key norm");
  args.eps = s.eps;
  ops_.push_back(RopeWriteOp{args});
}

void Executor::append_attention(const AttentionSpec& s) {
  AttentionArgs args{};
  args.kv = kv(s.layer);
  args.q = typed(s.q, {Elem::f32, Elem::bf16}, "queries");
  args.out = typed(s.out, {Elem::f32, Elem::bf16}, "attention's output");
  args.heads = s.heads;
  args.scale = s.scale;
  args.window = s.window;
  if (s.heads < 1 || args.q.cols != int64_t(s.heads) * args.kv.head_dim ||
      args.out.cols != args.q.cols)
    refuse("queries and output of attention do not fit the layer's heads");
  if (bound(s.q).rows != RowKind::tokens || bound(s.out).rows != RowKind::tokens)
    refuse("attention works on token rows");
  const AttentionShape shape{s.heads, args.kv.kv_heads, args.kv.head_dim, s.window};
  AttentionWork* work = work_for(shape);
  pool_.reserve_scratch(attention_scratch_bytes(shape));
  ops_.push_back(AttentionOp{args, work});
}

void Executor::append_select_rows(BufferId x, BufferId out, int64_t first) {
  const Buffer &from = bound(x), &to = bound(out);
  if (first < 0 || first + from.array.cols > to.array.cols || from.array.elem != to.array.elem ||
      from.rows != RowKind::tokens || to.rows != RowKind::selected)
    refuse("rows are selected from tokens into columns of rows 'S' of the same type");
  Array columns = to.array;
  columns.data += size_t(first) * elem_bytes(columns.elem);
  columns.cols = from.array.cols;
  ops_.push_back(SelectRowsOp{{from.array, columns}});
}

void Executor::append_argmax(BufferId x, BufferId out) {
  const Array& in = typed(x, {Elem::f32}, "logits");
  const Array& y = typed(out, {Elem::i32}, "an argmax");
  if (y.cols != 1 || bound(x).rows != bound(out).rows) refuse("an argmax is one column");
  const RowKind rows = bound(x).rows;
  const int64_t most = rows == RowKind::tokens ? shape_.max_tokens : shape_.max_logits;
  partials_.emplace_back(size_t(argmax_partials(most, in.cols)));
  ops_.push_back(ArgmaxOp{{in, y, partials_.back().data()}, rows});
}

void Executor::append_features(BufferId out, int64_t first) {
  const Array& y = typed(out, {Elem::f32}, "a copy of features");
  if (bound(out).rows != RowKind::tokens) refuse("features are of tokens");
  if (first < 0) refuse("there are no features before column 0");
  feature_cols_ = std::max(feature_cols_, first + y.cols);
  ops_.push_back(FeaturesOp{{y, first}});
}

void Executor::append_join(std::span<const BufferId> xs, BufferId out) {
  JoinArgs args{{}, typed(out, {Elem::f32, Elem::bf16}, "joined columns")};
  const RowKind rows = bound(out).rows;
  int64_t cols = 0;
  for (BufferId x : xs) {
    args.xs.push_back(typed(x, {Elem::f32, Elem::bf16}, "what is joined"));
    cols += args.xs.back().cols;
    if (bound(x).rows != rows || x == out) refuse("what is joined has the rows of what it becomes");
  }
  if (xs.empty() || cols != args.out.cols)
    refuse("joined columns are " + std::to_string(cols) + " for an output of " +
           std::to_string(args.out.cols));
  ops_.push_back(JoinOp{std::move(args), rows});
}

void Executor::append_add_activated(BufferId x, BufferId y, BufferId out, Activation activation) {
  AddActivatedArgs args{};
  if (x != kNone) args.x = typed(x, {Elem::f32}, "a sum's first term");
  args.y = typed(y, {Elem::f32}, "what is activated or added");
  args.out = typed(out, {Elem::f32, Elem::bf16}, "an activation or sum");
  args.activation = activation;
  const RowKind rows = bound(out).rows;
  if (args.out.cols != args.y.cols || bound(y).rows != rows ||
      (x != kNone && (args.x.cols != args.y.cols || bound(x).rows != rows)))
    refuse("terms and output of a sum differ in shape");
  ops_.push_back(AddActivatedOp{args, rows});
}

// --- handles -----------------------------------------------------------------------------------

const Executor::Buffer& Executor::bound(BufferId id) const {
  if (id < 0 || size_t(id) >= buffers_.size()) refuse("no such buffer");
  return buffers_[size_t(id)];
}

const Array& Executor::typed(BufferId id, std::initializer_list<Elem> elems,
                             const char* what) const {
  const Array& array = bound(id).array;
  for (Elem e : elems)
    if (array.elem == e) return array;
  refuse(std::string(what) + " has an element type that no kernel here takes");
}

const std::byte* Executor::constant(ConstantId id, size_t bytes, const char* what) const {
  if (id < 0 || size_t(id) >= constants_.size()) refuse("no such constant");
  const Memory& memory = constants_[size_t(id)];
  if (memory.bytes() != bytes)
    refuse(std::string(what) + " has " + std::to_string(memory.bytes()) + " bytes where " +
           std::to_string(bytes) + " are needed");
  return memory.data();
}

const float* Executor::floats(ConstantId id, int64_t count, const char* what) const {
  return reinterpret_cast<const float*>(constant(id, size_t(count) * sizeof(float), what));
}

Executor::Matrix& Executor::matrix(MatrixId id) {
  if (id < 0 || size_t(id) >= matrices_.size()) refuse("no such matrix");
  return matrices_[size_t(id)];
}

const KvLayer& Executor::kv(int layer) const {
  if (layer < 0 || size_t(layer) >= kv_.size()) refuse("no such KV layer");
  return kv_[size_t(layer)].layer;
}

std::span<const std::byte> Executor::kv_bytes(int layer) const {
  kv(layer);
  const Memory& memory = kv_[size_t(layer)].memory;
  return {memory.data(), memory.bytes()};
}

int64_t Executor::max_rows(BufferId id) const {
  return bound(id).rows == RowKind::tokens ? shape_.max_tokens : shape_.max_logits;
}

size_t Executor::weight_bytes() const {
  size_t total = 0;
  for (const Matrix& m : matrices_) total += m.memory.bytes();
  for (const Memory& m : constants_) total += m.bytes();
  return total;
}

AttentionWork* Executor::work_for(const AttentionShape& shape) {
  for (const auto& work : works_)
    if (work->shape() == shape) return work.get();
  const int64_t cached = int64_t(shape_.num_blocks) * kBlockSize;
  const AttentionLimits limits{shape_.max_tokens, shape_.max_sequences,
                               int(std::min<int64_t>(cached, shape_.max_positions)),
                               shape_.threads};
  works_.push_back(std::make_unique<AttentionWork>(shape, limits));
  return works_.back().get();
}

}  // namespace penstock
