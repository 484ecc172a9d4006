#include "executor.h"

#include <algorithm>
#include <cstring>

#include "refuse.h"
#include "sanitize.h"
#include "sizes.h"

namespace penstock {

Executor::Executor(const ExecutorShape& shape, const KvPages& pages, const StateSlots& states)
    : shape_(shape),
      kv_groups_(pages.groups),
      kv_part_bytes_(pages.part_bytes),
      state_slots_(states.slots),
      state_log_(states.log),
      state_slot_bytes_(states.slot_bytes),
      known_positions_(shape.max_positions),
      pool_(shape.threads < 1 ? 1 : shape.threads, shape.cpus, shape.crowded) {
  const int least_blocks = pages.layers.empty() ? 0 : 1;
  if (shape.threads < 1 || shape.num_blocks < least_blocks || shape.max_tokens < 1 ||
      shape.max_logits < 1 || shape.max_sequences < 1 || shape.max_positions < 1 ||
      shape.vocabulary < 1)
    refuse("every bound of an executor must be at least 1");
  if (int64_t(shape.num_blocks) * kBlockSize > INT32_MAX)
    refuse("slots are 32-bit: at most 67,108,863 KV blocks");
  if (shape.max_positions > kMostPositions)
    refuse("sequences have at most " + std::to_string(kMostPositions) + " positions, not " +
           std::to_string(shape.max_positions));
  if (shape.kv_elem == Elem::i32)
    refuse("a KV cache holds float32, bfloat16, float16, int8, int4, k8v4 or fp8");
  arena_ = std::make_shared<Memory>(shape.arena_bytes);
  if (pages.groups < least_blocks || pages.parts < least_blocks)
    refuse("layers that are cached have groups and a place in their pages");
  for (int part = 0; part < pages.parts; ++part)
    kv_parts_.emplace_back(size_t(checked_product(
        "a KV cache", {int64_t(pages.part_bytes), int64_t(shape.num_blocks)})));
  bool alike = true;
  const bool fours = shape.kv_elem == Elem::i4 || shape.kv_elem == Elem::k8v4;
  const bool without_latents = fours || shape.kv_elem == Elem::e4m3;
  const bool codes = without_latents || shape.kv_elem == Elem::i8;
  const std::string name = shape.kv_elem == Elem::i4 ? "int4" : fours ? "k8v4" : "fp8";
  for (const KvGeometry& g : pages.layers) {
    if (g.kv_heads < 1 || g.head_dim < 1) refuse("a KV layer needs heads and a head size");
    if (g.value_dim < 0 || g.value_dim > g.head_dim ||
        (g.value_dim && (g.kv_heads != 1 || g.head_dim > kMostLatentDim)))
      refuse("a cache of latents has one head of up to " + std::to_string(kMostLatentDim) +
             " components, not " + std::to_string(g.kv_heads) + " of " +
             std::to_string(g.head_dim) + " with values of " + std::to_string(g.value_dim));
    if (g.rows < 0 || g.rows > kBlockSize || (g.rows && (g.kv_heads != 1 || g.value_dim)))
      refuse("a cache of rows has up to " + std::to_string(kBlockSize) +
             " of a block, and neither heads nor latents");
    if (!g.value_dim && !g.rows && (g.head_dim % 2 != 0 || g.head_dim > kMostHeadDim))
      refuse("heads of a KV layer have an even size up to " + std::to_string(kMostHeadDim) +
             ", not " + std::to_string(g.head_dim));
    if (without_latents && g.value_dim) refuse("latents are not cached in " + name);
    if (fours && !g.rows && g.head_dim % 8 != 0)
      refuse("heads of a cache in " + name + " have a multiple of 8 components, not " +
             std::to_string(g.head_dim));
    if (g.group < 0 || g.group >= pages.groups || g.part < 0 || g.part >= pages.parts)
      refuse("a KV layer is of no group, or in no part of its pages");
    KvLayer layer{nullptr, g.rows && codes ? Elem::bf16 : shape.kv_elem, g.kv_heads, g.head_dim,
                  pages.part_bytes, g.group, g.value_dim, g.rows};
    if (g.offset % 64 != 0 || g.offset > pages.part_bytes ||
        layer.block_bytes() > pages.part_bytes - g.offset)
      refuse("a KV layer lies outside its page, or not on a cache line");
    layer.base = kv_parts_[size_t(g.part)].data() + g.offset;
    kv_.push_back(layer);
    const size_t head = layer.head_bytes();
    alike = alike && !g.rows && g.head_dim == pages.layers[0].head_dim &&
            g.value_dim == pages.layers[0].value_dim && g.offset % head == 0 &&
            pages.part_bytes % head == 0;
  }
  for (size_t part = 0; alike && part < kv_parts_.size(); ++part) {
    KvLayer all = kv_[0];
    all.base = kv_parts_[part].data();
    all.kv_heads = int(pages.part_bytes / all.head_bytes());
    movable_.push_back(all);
  }
  place_states(states);
}

// --- building ----------------------------------------------------------------------------------

BufferId Executor::add_buffer(size_t offset, Elem elem, int64_t cols, size_t row_bytes,
                              RowKind rows) {
  if (rows.times < 1 || rows.times > kMostRowsOfOne)
    refuse("a buffer has 1 to " + std::to_string(kMostRowsOfOne) + " rows for each of a step");
  const int64_t most = most_rows(rows);
  const size_t element = elem_bytes(elem), arena = arena_->bytes();
  if (cols < 1 || row_bytes / element < size_t(cols) || row_bytes % element != 0 ||
      offset % 64 != 0 || offset > arena || row_bytes > (arena - offset) / size_t(most))
    refuse("a buffer lies outside the arena, not on a cache line, or its rows overlap");
  std::shared_ptr<Memory> memory = arena_;
  std::byte* data = arena_->data() + offset;
  if constexpr (kChecksAddresses) {  // so that who leaves a buffer, or a row of it, is seen
    memory = std::make_shared<Memory>(size_t(most) * row_bytes);
    data = memory->data();
    const size_t used = size_t(cols) * element;
    for (int64_t r = 0; r < most; ++r)
      forbid_access(data + size_t(r) * row_bytes + used, row_bytes - used);
  }
  buffers_.push_back({{data, elem, cols, int64_t(row_bytes / element)}, rows, offset, memory});
  return BufferId(buffers_.size()) - 1;
}

void Executor::set_key_columns(int layer, ConstantId columns) {
  const KvLayer& of = attended(layer);
  if (of.elem != Elem::i4) refuse("keys of a cache in int4 alone are centered and scaled");
  if (!ops_.empty()) refuse("keys are centered and scaled before ops use them");
  kv_[size_t(layer)].key_columns =
      floats(columns, 2 * int64_t(of.kv_heads) * of.head_dim, "centers and factors of keys");
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

ConstantId Executor::add_table(size_t bytes) {
  constants_.emplace_back(bytes);
  tables_.emplace_back(ConstantId(constants_.size()) - 1, 0);
  return tables_.back().first;
}

void Executor::fill_constant(ConstantId id, size_t offset, std::span<const std::byte> bytes) {
  if (id < 0 || size_t(id) >= constants_.size()) refuse("no such constant");
  const Memory& memory = constants_[size_t(id)];
  if (offset > memory.bytes() || bytes.size() > memory.bytes() - offset)
    refuse("a part lies outside its constant");
  for (auto& [table, filled] : tables_)
    if (table == id) filled = std::max(filled, offset + bytes.size());
  pool_.run([&](Worker& worker) {
    const Share mine = share(int64_t(bytes.size()), worker);
    if (mine.empty()) return;
    std::memcpy(memory.data() + offset + mine.begin, bytes.data() + mine.begin,
                size_t(mine.end - mine.begin));
  });
}

std::span<const std::byte> Executor::constant_bytes(ConstantId id) const {
  if (id < 0 || size_t(id) >= constants_.size()) refuse("no such constant");
  const Memory& memory = constants_[size_t(id)];
  return {memory.data(), memory.bytes()};
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
  return kv_[size_t(layer)];
}

const StateLayer& Executor::state(int layer) const {
  if (layer < 0 || size_t(layer) >= states_.size()) refuse("no such layer with a state");
  return states_[size_t(layer)];
}

std::span<std::byte> Executor::state_slot(int slot) const {
  if (slot < 0 || slot >= state_slots_) refuse("no such slot of states");
  return {state_memory_.data() + size_t(slot) * state_slot_bytes_, state_slot_bytes_};
}

int64_t Executor::max_rows(BufferId id) const { return most_rows(bound(id).rows); }

const KvLayer& Executor::attended(int layer) const {
  const KvLayer& found = kv(layer);
  if (found.rows) refuse("a cache of rows has no keys");
  return found;
}

size_t Executor::weight_bytes() const {
  size_t total = 0;
  for (const Matrix& m : matrices_) total += m.memory.bytes();
  for (const Memory& m : constants_) total += m.bytes();
  for (const auto& [table, filled] : tables_)
    total -= constants_[size_t(table)].bytes() - filled;
  return total;
}

AttentionWork* Executor::work_for(const AttentionShape& shape) {
  for (const auto& work : works_)
    if (work->shape() == shape) return work.get();
  // Of what lies behind a window, a sequence keeps no blocks.
  const int64_t cached =
      shape.window > 0 || shape.chunk > 0 ? shape_.max_positions : int64_t(shape_.num_blocks) * kBlockSize;
  const AttentionLimits limits{shape_.max_tokens, shape_.max_sequences,
                               int(std::min<int64_t>(cached, shape_.max_positions)),
                               shape_.threads};
  works_.push_back(std::make_unique<AttentionWork>(shape, limits));
  return works_.back().get();
}

}  // namespace penstock
