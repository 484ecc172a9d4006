#include "executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace penstock {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

int64_t rows_of(RowKind kind, const StepView& step) {
  switch (kind) {
    case RowKind::tokens: return step.tokens;
    case RowKind::selected: return step.selected();
    case RowKind::logits: break;
  }
  return step.logits;
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // clang before 17 wants it spelled out

}  // namespace

Executor::Executor(const ExecutorShape& shape, const std::vector<KvGeometry>& kv_layers)
    : shape_(shape), pool_(shape.threads < 1 ? 1 : shape.threads, shape.cpus, shape.crowded) {
  if (shape.threads < 1 || shape.num_blocks < 1 || shape.max_tokens < 1 || shape.max_logits < 1 ||
      shape.max_sequences < 1 || shape.max_positions < 1 || shape.vocabulary < 1)
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

namespace {

void check_shape(const PackedMatrix& w) {
  if (w.n < 1 || w.k < 1 || w.elem == Elem::i32)
    refuse("a matrix needs rows, columns and a float type");
}

void check_depth(int64_t n, int64_t k, int64_t most) {
  if (n < 1 || k < 1 || k > most)
    refuse("a quantized matrix needs rows, and 1 to " + std::to_string(most) + " columns");
}

void check_shape(const IntMatrix& w) {
  check_depth(w.n, w.k, kMostIntDepth);
  if ((w.bits != 8 && w.bits != 4) || w.group < 0 || w.group % 32 != 0)
    refuse("weights are quantized to 8 or 4 bits, in groups of a multiple of 32");
  if (w.weight_only && !has_points(w.group))
    refuse("with float activations, groups have 32, 64 or 128 columns, or are whole rows");
  if (w.zero_points && w.group == 0) check_depth(w.n, w.k, kMostZeroedDepth);
}

void check_shape(const GridMatrix& w) {
  check_depth(w.n, w.k, kMostGridDepth);
  if (w.bits != 8 && w.bits != 4) refuse("weights are quantized to 8 or 4 bits");
}

}  // namespace

// Packing shares out the rows of each part, products the columns of the whole matrix: the pages of
// joined parts would come to lie with others than those who read them.
void Executor::place(const Memory& weights) {
  pool_.run([&](Worker& worker) { weights.touch(worker.id, worker.count); });
}

MatrixId Executor::add_matrix(AnyMatrix matrix) {
  Memory memory = std::visit(
      [](auto& w) {
        check_shape(w);
        Memory panels(packed_bytes(w));
        w.panels = panels.data();
        w.bias = nullptr;
        return panels;
      },
      matrix);
  place(memory);
  regions_.emplace_back(memory.data(), memory.bytes());
  matrices_.push_back({matrix, std::move(memory)});
  return MatrixId(matrices_.size()) - 1;
}

namespace {

// Where rows from `first` on of a matrix go; throws if they lie outside it.
PartPlace place_of(int64_t n, bool gated, int64_t first, int64_t count) {
  const bool fits = gated ? count == n && (first == 0 || first == n)
                          : count >= 1 && first >= 0 && first + count <= n;
  if (!fits) refuse("a part lies outside its matrix");
  return gated ? gated_part(first == 0 ? 0 : 1) : joined_part(first, count, n);
}

}  // namespace

void Executor::pack_rows(MatrixId id, int64_t first, int64_t count,
                         std::span<const std::byte> rows) {
  const PackedMatrix& w = matrix_of<PackedMatrix>(id);
  std::byte* const panels = matrix(id).memory.data();
  const PartPlace place = place_of(w.n, w.gated, first, count);
  if (rows.size() != size_t(count * w.k) * elem_bytes(w.elem))
    refuse("a part's bytes are not its rows times the matrix's columns");
  pool_.run([&](Worker& worker) {
    pack_part(w.elem, rows.data(), count, w.k, place, panels, worker);
  });
}

void Executor::pack_int_rows(MatrixId id, int64_t first, int64_t count,
                             std::span<const int8_t> codes, std::span<const float> scales,
                             std::span<const int8_t> zeros) {
  const IntMatrix& w = matrix_of<IntMatrix>(id);
  std::byte* const panels = matrix(id).memory.data();
  const PartPlace place = place_of(w.n, w.gated, first, count);
  if (codes.size() != size_t(count * w.k) ||
      scales.size() != size_t(count * int_groups(w.k, w.group)) ||
      zeros.size() != (w.zero_points ? scales.size() : 0))
    refuse("a part's codes, scales or zeros are not its rows times the matrix's columns or groups");
  pool_.run([&](Worker& worker) {
    pack_int_part(w, {codes.data(), scales.data(), zeros.data()}, count, place, panels, worker);
  });
}

bool Executor::pack_grid_rows(MatrixId id, int64_t first, int64_t count, Elem elem,
                              std::span<const std::byte> rows) {
  const GridMatrix& w = matrix_of<GridMatrix>(id);
  std::byte* const panels = matrix(id).memory.data();
  const PartPlace place = place_of(w.n, w.gated, first, count);
  if (elem == Elem::i32 || rows.size() != size_t(count * w.k) * elem_bytes(elem))
    refuse("a part's bytes are not its rows times the matrix's columns");
  std::atomic<bool> finite = true;
  pool_.run([&](Worker& worker) {
    if (!quantize_grid_part(w, elem, rows.data(), count, place, panels, worker)) finite = false;
  });
  return finite;
}

void Executor::round_rows(Elem elem, std::span<const std::byte> rows, int64_t count, int64_t k,
                          int bits, int64_t group, std::span<int8_t> codes,
                          std::span<float> scales, std::span<int8_t> zeros) {
  if (count < 1 || k < 1 || (bits != 8 && bits != 4) || group < 0 || elem == Elem::i32 ||
      rows.size() != size_t(count * k) * elem_bytes(elem) || codes.size() != size_t(count * k) ||
      scales.size() != size_t(count * int_groups(k, group)) ||
      (!zeros.empty() && zeros.size() != scales.size()))
    refuse("rows, codes, scales and zeros of rounded weights differ in shape");
  pool_.run([&](Worker& worker) {
    round_weights(elem, rows.data(), count, k, bits, group, codes.data(), scales.data(),
                  zeros.data(), worker);
  });
}

std::vector<ChunkChecksums> Executor::read_regions(int fd, std::span<const FileRegion> regions,
                                                   size_t chunk) {
  return penstock::read_regions(pool_, fd, regions, chunk);
}

std::vector<ChunkChecksums> Executor::write_regions(int fd, std::span<const FileRegion> regions,
                                                    size_t chunk) {
  return penstock::write_regions(pool_, fd, regions, chunk);
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

void Executor::append_select_rows(BufferId x, BufferId out) {
  const Buffer &from = bound(x), &to = bound(out);
  if (from.array.cols != to.array.cols || from.array.elem != to.array.elem ||
      from.rows != RowKind::tokens || to.rows != RowKind::selected)
    refuse("rows are selected from tokens into rows 'S' of the same shape and type");
  ops_.push_back(SelectRowsOp{{from.array, to.array}});
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

template <class Kind>
const Kind& Executor::matrix_of(MatrixId id) {
  const Kind* kind = std::get_if<Kind>(&matrix(id).packed);
  if (!kind) refuse("the matrix is of another kind than what is packed into it");
  return *kind;
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

// --- running -----------------------------------------------------------------------------------

// Python built the step and would be the one at fault, but an index out of bounds here corrupts
// another request's cache silently; the checks cost about a microsecond a thousand indices.
void Executor::check(const StepView& s, std::span<const int32_t> copies) const {
  const auto within = [](const int32_t* values, int64_t count, int64_t bound, const char* what) {
    for (int64_t i = 0; i < count; ++i)
      if (values[i] < 0 || values[i] >= bound)
        refuse(std::string(what) + " " + std::to_string(values[i]) + " is not in [0, " +
               std::to_string(bound) + ")");
  };
  if (s.tokens < 1 || s.tokens > shape_.max_tokens)
    refuse("a step has 1 to " + std::to_string(shape_.max_tokens) + " tokens, not " +
           std::to_string(s.tokens));
  if (s.sequences < 1 || s.sequences > shape_.max_sequences)
    refuse("a step has 1 to " + std::to_string(shape_.max_sequences) + " sequences, not " +
           std::to_string(s.sequences));
  if (s.selected() > shape_.max_logits)
    refuse("a step has at most " + std::to_string(shape_.max_logits) +
           " rows of logits and hidden states, not " + std::to_string(s.selected()));
  within(s.token_ids, s.tokens, shape_.vocabulary, "token id");
  within(s.positions, s.tokens, shape_.max_positions, "position");
  within(s.slots, s.tokens, int64_t(shape_.num_blocks) * kBlockSize, "slot");
  within(s.logit_rows, s.logits, s.tokens, "logit row");
  within(s.hidden_rows, s.hidden, s.tokens, "hidden row");
  within(s.block_ids, s.block_starts[s.sequences], shape_.num_blocks, "block id");
  within(copies.data(), int64_t(copies.size()), shape_.num_blocks, "copied block");
  if (s.query_starts[0] != 0 || s.query_starts[s.sequences] != s.tokens || s.block_starts[0] != 0)
    refuse("query_starts must run from 0 to the number of tokens, block_starts from 0");
  for (int i = 0; i < s.sequences; ++i) {
    const int64_t queries = int64_t(s.query_starts[i + 1]) - s.query_starts[i];
    const int64_t blocks = int64_t(s.block_starts[i + 1]) - s.block_starts[i];
    const int64_t context = s.context_lens[i];
    if (queries < 1 || context < queries || context > blocks * kBlockSize ||
        context > shape_.max_positions)
      refuse("sequence " + std::to_string(i) + " of the step has " + std::to_string(queries) +
             " tokens, a context of " + std::to_string(context) + " and " +
             std::to_string(blocks) + " blocks, which do not agree");
  }
}

void Executor::prepare(const StepView& step, std::span<const int32_t> copies) {
  check(step, copies);
  for (const auto& work : works_) build_attention_work(step, *work);
}

void Executor::copy_blocks(std::span<const int32_t> copies, const Worker& worker) const {
  const Share mine = share(int64_t(kv_.size()), worker);  // whole layers: a copy may feed the next
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const KvLayer& layer = kv_[size_t(i)].layer;
    const size_t bytes = layer.block_bytes();
    for (size_t c = 0; c + 1 < copies.size(); c += 2)
      if (copies[c] != copies[c + 1])
        std::memcpy(layer.base + size_t(copies[c + 1]) * bytes,
                    layer.base + size_t(copies[c]) * bytes, bytes);
  }
}

struct Executor::Runner {
  const StepView& step;
  Worker& worker;
  std::byte* shared;

  void operator()(const EmbedOp& op) const { embed(op.args, step, worker); }
  void operator()(const AddNormOp& op) const {
    add_norm(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const LinearOp& op) const {
    const int64_t rows = rows_of(op.rows, step);
    if (rows == 0) return;
    std::visit([&](const auto& w) { linear(w, op.x, op.out, rows, op.gate, shared, worker); },
               op.w);
  }
  void operator()(const RopeWriteOp& op) const { rope_write(op.args, step, worker); }
  void operator()(const AttentionOp& op) const { attention(op.args, step, *op.work, worker); }
  void operator()(const SelectRowsOp& op) const { select_rows(op.args, step, worker); }
  void operator()(const ArgmaxOp& op) const { argmax(op.args, rows_of(op.rows, step), worker); }
};

void Executor::run(const StepView& step, std::span<const int32_t> copies) {
  prepare(step, copies);
  pool_.run([&](Worker& worker) {
    if (!copies.empty()) {
      copy_blocks(copies, worker);
      worker.barrier->wait(worker);
    }
    for (const Op& op : ops_) {
      std::visit(Runner{step, worker, shared_.data()}, op);
      worker.barrier->wait(worker);
    }
  });
}

std::vector<double> Executor::profile(const StepView& step, std::span<const int32_t> copies) {
  prepare(step, copies);
  std::vector<double> seconds(ops_.size());
  pool_.run([&](Worker& worker) {
    if (!copies.empty()) copy_blocks(copies, worker);
    worker.barrier->wait(worker);
    auto last = std::chrono::steady_clock::now();
    for (size_t i = 0; i < ops_.size(); ++i) {
      std::visit(Runner{step, worker, shared_.data()}, ops_[i]);
      worker.barrier->wait(worker);
      if (worker.id != 0) continue;
      const auto now = std::chrono::steady_clock::now();
      seconds[i] = std::chrono::duration<double>(now - last).count();
      last = now;
    }
  });
  return seconds;
}

std::vector<std::string> Executor::op_names() const {
  std::vector<std::string> names;
  for (const Op& op : ops_)
    names.push_back(std::visit(Overloaded{[](const EmbedOp&) { return "Embed"; },
                                          [](const AddNormOp&) { return "AddNorm"; },
                                          [](const LinearOp&) { return "Linear"; },
                                          [](const RopeWriteOp&) { return "RopeWrite"; },
                                          [](const AttentionOp&) { return "Attention"; },
                                          [](const SelectRowsOp&) { return "SelectRows"; },
                                          [](const ArgmaxOp&) { return "Argmax"; }},
                               op));
  return names;
}

}  // namespace penstock
