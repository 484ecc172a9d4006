// Runs a plan's steps: an array of bound ops, walked by every thread of the pool in one call.
//
// Built once: buffers are declared, constants and matrices copied in, ops appended in order. Then
// run() is called once a step and allocates nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor_ops.h"
#include "memory.h"
#include "pages_ahead.h"
#include "pool.h"
#include "rank_group.h"
#include "region_io.h"
#include "states.h"
#include "types.h"

namespace penstock {

// Bounds of every step, and what the cache is made of.
struct ExecutorShape {
  int threads;
  std::vector<int> cpus;  // of Pool
  bool crowded;           // of Pool
  int num_blocks;
  int max_tokens;
  int max_logits;  // and selected rows
  int max_sequences;
  int max_positions;  // rows of the rope tables
  int vocabulary;
  size_t arena_bytes;
  Elem kv_elem;
  bool trial = false;  // ops are appended and nothing is packed or run: weights take no memory
};

// A layer's cache and its place in a page.
struct KvGeometry {
  int kv_heads;
  int head_dim;
  int group;      // of the step's tables
  int part;       // of the page
  size_t offset;  // bytes in the part
  int value_dim = 0;  // of KvLayer
  int rows = 0;       // of KvLayer
};

// A block id is a page: `part_bytes` at the place of its number in each of `parts` memories. Layers
// of equal size have a part each, so that a layer's blocks lie one behind the other.
struct KvPages {
  int groups;
  int parts;
  size_t part_bytes;
  std::vector<KvGeometry> layers;
};

// Handles are indices, in the order of creation.
using BufferId = int;
using ConstantId = int;
constexpr int kNone = -1;

constexpr int kMostRowsOfOne = 1 << 16;  // RowKind::times

// Seconds of an op, until the last thread had done its part, how long the mean thread waited for that
// one, and how long the first one waited for other ranks.
struct OpTime {
  double seconds = 0, waiting = 0, for_ranks = 0;
};

class Executor {
 public:
  Executor(const ExecutorShape& shape, const KvPages& pages, const StateSlots& states = {});

  // --- building; every call throws std::invalid_argument on a handle or size that cannot be
  // row_bytes: from row to row, of `cols` elements or more.
  BufferId add_buffer(size_t offset, Elem elem, int64_t cols, size_t row_bytes, RowKind rows);
  // What a layer's keys are centered and scaled by (KvLayer), before ops use the layer.
  void set_key_columns(int layer, ConstantId columns);
  // Makes this executor one rank's of several, whose AllGathers go through the memory of `fd`. Before
  // ops are appended.
  void join_ranks(int fd, const RankGroup::Place& place);
  // A constant that is computed for this executor, such as an angle table.
  ConstantId add_constant(std::span<const std::byte> bytes);
  // A constant made of weights: zeros, until they are filled in from `offset` on.
  ConstantId reserve_constant(size_t bytes);
  // Zeros to be filled later, that are no weight: no region.
  ConstantId add_table(size_t bytes);
  // Steps with a position from this one on throw std::out_of_range before they change anything:
  // tables by position are not filled there yet. All are known at first.
  void set_known_positions(int positions) { known_positions_ = positions; }
  void fill_constant(ConstantId constant, size_t offset, std::span<const std::byte> bytes);
  std::span<const std::byte> constant_bytes(ConstantId id) const;
  // Its panels and bias are set later. `experts`: so many of them, as one region.
  MatrixId add_matrix(AnyMatrix matrix, int64_t experts = 1);
  // Of a PackedMatrix: `rows` [count, k] in its element type become its rows from `first`; a gated
  // matrix are n of gate, then n of up. Rows of experts follow those of the one before, and a part
  // is one expert's. Packs on all threads.
  void pack_rows(MatrixId matrix, int64_t first, int64_t count, std::span<const std::byte> rows);
  // As pack_rows, of an IntMatrix: codes [count, k], their scales [count, groups] and, with zero
  // points, zeros [count, groups]. False if panels are sparse and the rows are not.
  bool pack_int_rows(MatrixId matrix, int64_t first, int64_t count,
                     std::span<const int8_t> codes, std::span<const float> scales,
                     std::span<const int8_t> zeros);
  // As pack_rows, of a GridMatrix, which rounds rows of any float type. False if a value is not
  // finite.
  bool pack_grid_rows(MatrixId matrix, int64_t first, int64_t count, Elem elem,
                      std::span<const std::byte> rows);
  // As pack_rows, of a BlockMatrix: rows of a file's blocks.
  void pack_block_rows(MatrixId matrix, int64_t first, int64_t count,
                       std::span<const std::byte> rows);
  // As pack_rows, of a CodebookMatrix: codes in the bytes of codebook_row_bytes(), the values of each
  // row [count, 2^bits], and outliers as CodebookRows has them, `first_outlier` of the matrix's on.
  void pack_codebook_rows(MatrixId matrix, int64_t first, int64_t count,
                          std::span<const std::byte> codes, std::span<const float> values,
                          std::span<const int32_t> ends, std::span<const int32_t> columns,
                          std::span<const float> outliers, int64_t first_outlier);
  // What pack_int_rows wants, from rows [count, k] of floating point: see round_weights().
  void round_rows(Elem elem, std::span<const std::byte> rows, int64_t count, int64_t k, int bits,
                  int64_t group, std::span<int8_t> codes, std::span<float> scales,
                  std::span<int8_t> zeros);

  // Weights as regions of opaque bytes: one for each matrix and each reserved constant, in the order
  // in which they were made. Reading them from a file stands in for packing and filling.
  const std::vector<std::span<std::byte>>& regions() const { return regions_; }
  std::vector<ChunkChecksums> read_regions(int fd, std::span<const FileRegion> regions,
                                           size_t chunk);
  std::vector<ChunkChecksums> write_regions(int fd, std::span<const FileRegion> regions,
                                            size_t chunk);

  // Ops run in the order in which they are appended; plan/ops says what each does. Each checks that
  // its buffers and constants are there, of types that its kernel takes, agree in shape, and lie
  // apart where the kernel needs them to.
  // `rows` of the table, at least as many as there are tokens.
  void append_embed(ConstantId table, Elem elem, BufferId out, int64_t rows);
  // Of a BlockMatrix or an IntMatrix that is not gated, which products may read, too.
  void append_packed_embed(MatrixId table, BufferId out);
  // The table has a row for each position, from `offset` on.
  void append_add_positions(BufferId x, BufferId out, ConstantId table, Elem elem, int64_t rows,
                            int64_t offset);
  void append_add_norm(BufferId residual, BufferId delta, BufferId out, ConstantId weight,
                       float eps);
  void append_rms_norm(BufferId x, BufferId out, ConstantId weight, float eps);
  void append_layer_norm(BufferId x, BufferId out, ConstantId weight, ConstantId bias, float eps);
  void append_linear(MatrixId matrix, ConstantId bias, BufferId x, BufferId out,
                     Gating gate);
  void append_route(BufferId logits, BufferId ids, BufferId shares, ConstantId choice_bias,
                    ConstantId share_scale, const Routing& routing);
  void append_expert_linear(MatrixId matrix, ConstantId bias, BufferId x, BufferId ids,
                            BufferId out, Gating gate);
  struct AdapterDownSpec {
    BufferId x, low;
    int64_t slots, rank, parts;
    Elem elem;
    ConstantId weights, scales;  // tables, as AdapterDownArgs has them
  };
  void append_adapter_down(const AdapterDownSpec& spec);
  struct AdapterUpSpec {
    BufferId low, out;
    int64_t slots, rank;
    std::vector<int64_t> columns;
    int64_t at, parts;
    Elem elem;
    ConstantId weights, scales;  // as AdapterUpArgs has them
  };
  void append_adapter_up(const AdapterUpSpec& spec);
  void append_scale_rows(BufferId x, BufferId by, BufferId out, bool sigmoid);
  // Without shares, the sum.
  void append_combine_experts(BufferId x, BufferId shares, BufferId out);
  struct HeadNormSpec {
    int head_dim;
    ConstantId weight, bias;
    float eps;
    bool layer = false, each_head = false;
  };
  void append_head_norm(BufferId x, BufferId out, const HeadNormSpec& spec);
  struct RotationSpec {
    ConstantId cos, sin;
    int dim;
    bool interleaved = false;
  };
  void append_rope(BufferId x, BufferId out, int head_dim, const RotationSpec& rotation);
  // v: kNone for a cache of latents.
  void append_kv_write(int layer, BufferId k, BufferId v);
  // The matrix has `heads` heads one after another, each with its columns in whole panels.
  void append_head_linear(MatrixId matrix, int heads, BufferId x, BufferId out);
  struct RopeWriteSpec {
    int layer;
    BufferId qkv, q;
    int heads;
    RotationSpec rotation;
    ConstantId q_norm, k_norm;
    float eps;
  };
  void append_rope_write(const RopeWriteSpec& spec);
  struct AttentionSpec {
    int layer;
    BufferId q, out;
    int heads;
    float scale;
    int window;
    float softcap = 0;  // 0: none
    ConstantId slopes = kNone, sinks = kNone;
    int chunk = 0;
    float slope_factor = 0;  // 0: slopes are taken as they are
  };
  void append_attention(const AttentionSpec& spec);
  struct StateConvSpec {
    int layer;  // that keeps a state
    BufferId x, out;
    ConstantId weight, bias;  // weight: [kernel, cols]
    int kernel;
    bool silu;
  };
  void append_state_conv(const StateConvSpec& spec);
  struct GatedDeltaSpec {
    int layer;
    BufferId qkv, ba, out;
    ConstantId a_log, dt_bias;
    int key_heads;
    bool tiled;
  };
  void append_gated_delta(const GatedDeltaSpec& spec);
  struct SelectiveScanSpec {
    int layer;
    BufferId xbc, dt, out;
    ConstantId a_log, dt_bias, d;
    int groups;
    float least_step, most_step;
  };
  void append_selective_scan(const SelectiveScanSpec& spec);
  struct GatedNormSpec {
    BufferId x, gate, out;
    ConstantId weight;
    float eps;
    int64_t size;
    bool gate_first, each_part;
  };
  void append_gated_norm(const GatedNormSpec& spec);
  // taps: [kernel, columns], the oldest token's first.
  void append_short_conv(int layer, BufferId x, BufferId out, ConstantId taps, ConstantId bias,
                         int kernel);
  // ranks: the columns of `out` that each rank has, which together are all; x is this rank's.
  void append_all_gather(BufferId x, BufferId out, std::vector<ColumnRange> ranks);
  // The same for rank 0 alone; the others have no out (kNone).
  void append_gather_to_first(BufferId x, BufferId out, std::vector<ColumnRange> ranks);
  // Into the columns of `out` from `first` on.
  void append_select_rows(BufferId x, BufferId out, int64_t first);
  void append_argmax(BufferId x, BufferId out);
  void append_features(BufferId out, int64_t first);
  void append_join(std::span<const BufferId> xs, BufferId out, int heads = 1);
  // orders: of each output, int32, a column of x for each of its own; with ids, of each expert.
  void append_gather_columns(BufferId x, std::span<const BufferId> outs,
                             std::span<const ConstantId> orders, BufferId ids = kNone);
  // How rows are turned (kernels/turn.h): constants of float32, signs [cols] and base_matrix
  // [base, base], which there is none of where base is 1.
  struct TurnSpec {
    ConstantId signs, base_matrix;
    int64_t doubled, base;
  };
  void append_turn_rows(BufferId x, BufferId out, const TurnSpec& turn);
  // Columns of x and perhaps of `second`, from `first` on; scale [1], and perhaps bias [cols].
  void append_turn_back(BufferId x, BufferId second, BufferId out, int64_t first, float by,
                        ConstantId scale, ConstantId bias, const TurnSpec& turn);
  // The columns of `x` from `first` on.
  void append_columns(BufferId x, BufferId out, int64_t first);
  // out = x + activation(y); without x, the activation alone.
  void append_add_activated(BufferId x, BufferId y, BufferId out, Activation activation);
  void append_gate(BufferId gate, BufferId up, BufferId out, Gating gating);
  void append_scale(BufferId x, BufferId out, float factor);
  void append_scale_by(BufferId x, BufferId out, ConstantId factor);
  void append_soft_cap(BufferId x, BufferId out, float cap);
  // Of the constants, one number each.
  void append_xielu(BufferId x, BufferId out, ConstantId p, ConstantId n, ConstantId beta,
                    ConstantId eps);
  void append_clamp(BufferId x, BufferId out, float limit);
  // A factor for each period of positions.
  void append_scale_by_position(BufferId x, BufferId out, ConstantId factors, int64_t period,
                                int64_t offset);

  // --- blocks as bytes, between steps: in the layout of types.h without what pages waste, those of a
  // group's layers one behind the other, ascending (interface/blocks.py)
  int groups() const { return kv_groups_; }
  // Of one block.
  size_t group_bytes(int group) const;
  // Copies blocks of a group to `out`, one behind the other; the CRC-32C of each.
  std::vector<uint32_t> read_blocks(int group, std::span<const int32_t> blocks,
                                    std::span<std::byte> out);
  // The reverse. If a checksum is not that of its bytes nothing is written, and the number of the
  // first such block among `blocks` returned; else -1.
  int64_t write_blocks(int group, std::span<const int32_t> blocks,
                       std::span<const std::byte> bytes, std::span<const uint32_t> checksums);

  // --- tuning: how products are carried out, of which no result and no region depends
  struct Parameter {
    std::string_view name;
    int64_t value, least, most;
  };
  // Those of kernels/gemm_tuning.h that this instruction set heeds.
  std::vector<Parameter> parameters(MatrixId matrix);
  // Throws std::invalid_argument where there is no such parameter, or its range lacks the value.
  void set_parameter(MatrixId matrix, std::string_view name, int64_t value);
  // Most rows that the matrix's product is given.
  int64_t product_rows(MatrixId matrix) const;
  // Puts numbers into the first `rows` rows of what these matrices are multiplied by. Between steps
  // activations mean nothing.
  void fill_inputs(std::span<const MatrixId> matrices, int64_t rows);
  // Runs the matrix's product once; seconds of processor time of the thread that took longest.
  double time_product(MatrixId matrix, int64_t rows);

  // Has pages of the cache cleared before steps write to them (pages_ahead.h), at least so many blocks ahead. For where
  // memory is equally near to all threads: pages lie where they are cleared.
  void clear_pages_ahead(int64_t blocks);

  // --- running
  // Edits the cache, then runs the ops. Throws std::invalid_argument on a step that is malformed or
  // exceeds the shape, before anything is written, and std::runtime_error where another rank has
  // failed, after which results mean nothing.
  // `adapters`: the slot of each sequence's adapter, -1 for those without; null where none has one.
  void run(const StepView& step, const CacheEdits& edits, const int32_t* adapters = nullptr);
  // As run, and returns what each op took: two looks at the clock a thread and an op.
  std::vector<OpTime> profile(const StepView& step, const CacheEdits& edits,
                              const int32_t* adapters = nullptr);
  std::vector<std::string> op_names() const;

  const ExecutorShape& shape() const { return shape_; }
  // For other work between steps.
  Pool& pool() { return pool_; }
  const Array& buffer(BufferId id) const { return bound(id).array; }
  // What a buffer lies in.
  const std::shared_ptr<Memory>& memory_of(BufferId id) const { return bound(id).memory; }
  int64_t max_rows(BufferId id) const;
  const KvLayer& kv(int layer) const;
  const StateLayer& state(int layer) const;
  // All layers' states in one slot.
  std::span<std::byte> state_slot(int slot) const;
  size_t weight_bytes() const;

 private:
  struct Buffer {
    Array array;
    RowKind rows;
    size_t offset;                   // in the arena
    std::shared_ptr<Memory> memory;  // the arena; where addresses are checked, the buffer's own
    int64_t below = 0;  // ids of experts: which an op before this one has written, all below this
  };
  struct Matrix {
    AnyMatrix packed;  // the first expert's, where there are several
    Memory memory;
    int64_t experts;
  };
  // Where a part goes.
  struct Destination {
    std::byte* panels;
    PartPlace place;
  };
  struct Runner;

  const Buffer& bound(BufferId id) const;
  // Refuses buffers that share bytes.
  void require_apart(BufferId a, BufferId b) const;
  const Array& typed(BufferId id, std::initializer_list<Elem> elems, const char* what) const;
  const std::byte* constant(ConstantId id, size_t bytes, const char* what) const;
  const float* floats(ConstantId id, int64_t count, const char* what) const;
  // Null for kNone.
  const float* optional_floats(ConstantId id, int64_t count, const char* what) const {
    return id == kNone ? nullptr : floats(id, count, what);
  }
  // The layers of a group, ascending.
  std::vector<const KvLayer*> layers_of(int group) const;
  void check_blocks(int group, std::span<const int32_t> blocks, size_t bytes) const;
  // A layer of heads, or of latents.
  const KvLayer& attended(int layer) const;
  Matrix& matrix(MatrixId id);
  template <class Kind>
  const Kind& matrix_of(MatrixId id);
  template <class Kind>
  Destination destination(const Kind& w, MatrixId id, int64_t first, int64_t count);
  // An op of heads: input and output are the same whole heads, and the same buffer or apart.
  void check_heads(BufferId x, BufferId out, int head_dim) const;
  Rotation rotation(const RotationSpec& spec, int head_dim) const;
  // An op of elements: inputs and output agree in shape, and each is the output or apart from it.
  RowKind check_elements(std::initializer_list<BufferId> inputs, BufferId out) const;
  Turn turn_of(const TurnSpec& spec, int64_t cols) const;
  // A scan's input or output: float32 rows of tokens of so many columns.
  const Array& token_floats(BufferId id, int64_t cols, const char* what) const;
  NormArgs norm(BufferId x, BufferId out, ConstantId weight, ConstantId bias, float eps) const;
  // Input, output and row kind of a product, checked against n, k and gated of its matrix.
  void check_gather(BufferId x, BufferId out, const std::vector<ColumnRange>& ranks) const;
  RowKind check_product(int64_t n, int64_t k, bool gated, BufferId x, BufferId out,
                        Gating gate) const;
  // The first product with the matrix.
  const LinearOp& product_of(MatrixId matrix, int64_t rows) const;
  void reserve_for(const LinearOp& op);
  void place(const Memory& weights);
  void place_states(const StateSlots& states);
  void reserve_shared(size_t bytes);
  int64_t most_rows(RowKind rows) const {
    const int64_t each = rows.base == RowBase::tokens ? shape_.max_tokens : shape_.max_logits;
    return each * rows.times;
  }
  const AdapterScale* adapter_scales(ConstantId id, int64_t slots, int64_t parts);
  void sort_by_adapter(const StepView& step, const int32_t* adapters);
  AttentionWork* work_for(const AttentionShape& shape);
  void prepare(const StepView& step, const CacheEdits& edits, const int32_t* adapters);
  void require_ranks() const;
  // Tells the thread that clears pages of a step, while this is there.
  class Writing;
  void edit_cache(const CacheEdits& edits, const Worker& worker) const;

  ExecutorShape shape_;
  std::shared_ptr<Memory> arena_;
  std::vector<KvLayer> kv_;
  int kv_groups_;
  std::vector<Memory> kv_parts_;
  // Each part of all pages as one layer, which has every head of every group there. None where
  // heads differ in size: what lies where then depends on the page's group.
  std::vector<KvLayer> movable_;
  size_t kv_part_bytes_;
  int state_slots_, state_log_;
  size_t state_slot_bytes_;
  Memory state_memory_;
  std::vector<StateLayer> states_;
  std::vector<Buffer> buffers_;
  std::vector<Memory> constants_;
  std::vector<Matrix> matrices_;
  std::vector<std::span<std::byte>> regions_;  // of the two above
  Memory shared_;  // of one product at a time
  std::vector<std::unique_ptr<AttentionWork>> works_;  // one per distinct shape
  std::vector<std::vector<ArgmaxPartial>> partials_;
  std::vector<Op> ops_;
  int64_t feature_cols_ = 0;  // that ops read
  bool branches_ = true;      // whether ops can run draft trees
  int known_positions_;
  int64_t adapter_slots_ = 0;  // of ops that add adapters
  AdapterRows adapted_[3];     // of the step's tokens, its selected rows, and those of logits
  std::vector<int32_t> token_adapters_, adapter_ends_;
  std::vector<std::pair<ConstantId, size_t>> tables_;  // and their bytes that are filled
  std::unique_ptr<RankGroup> ranks_;  // null: this is no rank
  std::unique_ptr<PagesAhead> pages_ahead_;  // null: steps clear pages themselves
  Pool pool_;  // last: its threads end before what they read
};

}  // namespace penstock
