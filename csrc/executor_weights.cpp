// An executor's matrices: made, packed, read from files and written to them.
#include <atomic>

#include "executor.h"
#include "kernels/gemm_int_sparse.h"
#include "refuse.h"
#include "sizes.h"

namespace penstock {

template <class Kind>
const Kind& Executor::matrix_of(MatrixId id) {
  const Kind* kind = std::get_if<Kind>(&matrix(id).packed);
  if (!kind) refuse("the matrix is of another kind than what is packed into it");
  return *kind;
}

namespace {

// So that bytes of panels, which pad rows and columns, are numbers.
constexpr int64_t kMostExperts = 1 << 16;

void check_extent(int64_t n, int64_t k, bool gated) {
  checked_product("a matrix", {n, k, gated ? 2 : 1, int64_t(sizeof(float))});
  if (n > INT32_MAX || k > INT32_MAX) refuse("a matrix has more rows or columns than 2^31 - 1");
}

void check_shape(const PackedMatrix& w) {
  if (w.n < 1 || w.k < 1 || w.elem == Elem::i32)
    refuse("a matrix needs rows, columns and a float type");
  check_extent(w.n, w.k, w.gated);
}

void check_depth(int64_t n, int64_t k, int64_t most) {
  if (n < 1 || n > INT32_MAX || k < 1 || k > most)
    refuse("a quantized matrix needs rows, fewer than 2^31, and 1 to " + std::to_string(most) +
           " columns");
}

void check_shape(const IntMatrix& w) {
  check_depth(w.n, w.k, kMostIntDepth);
  if ((w.bits != 8 && w.bits != 4) || w.group < 0 || w.group % 32 != 0 ||
      w.group > kMostIntDepth)
    refuse("weights are quantized to 8 or 4 bits, in groups of a multiple of 32");
  if (w.weight_only && !has_points(w.group))
    refuse("with float activations, groups have 32, 64 or 128 columns, or are whole rows");
  if (w.zero_points && (w.group == 0 || w.group > kMostZeroedDepth))
    check_depth(w.n, w.k, kMostZeroedDepth);
  if (w.sparse && (w.weight_only || !expands_sparse()))
    refuse("sparse panels are multiplied with AVX-512 VBMI2, by rows that are quantized, too");
}

void check_shape(const GridMatrix& w) {
  check_depth(w.n, w.k, kMostGridDepth);
  if (w.bits != 8 && w.bits != 4) refuse("weights are quantized to 8 or 4 bits");
}

void check_shape(const BlockMatrix& w) {
  check_depth(w.n, w.k, kMostBlockDepth);
  if (block_row_bytes(w.format, w.k) == 0)
    refuse("a matrix in blocks has rows of whole blocks, and not of " + std::to_string(w.k) +
           " columns");
  if (!w.weight_only && !has_whole_points(w.format))
    refuse("what is multiplied by a matrix in blocks of floats stays in floats: weight_only");
}

void check_shape(const CodebookMatrix& w) {
  check_depth(w.n, w.k, kMostCodebookDepth);
  if ((w.bits != 3 && w.bits != 4) || (w.values != Elem::f32 && w.values != Elem::bf16))
    refuse("codebooks of rows have codes of 3 or 4 bits, and values in float32 or bfloat16");
  if (w.outliers < 0 || w.outliers > kMostOutliers)
    refuse("a matrix has at most " + std::to_string(kMostOutliers) + " outliers");
}

}  // namespace

// Packing shares out the rows of each part, products the columns of the whole matrix: the pages of
// joined parts would come to lie with others than those who read them.
void Executor::place(const Memory& weights) {
  pool_.run([&](Worker& worker) { weights.touch(worker.id, worker.count); });
}

MatrixId Executor::add_matrix(AnyMatrix matrix, int64_t experts) {
  if (experts < 1 || experts > kMostExperts)
    refuse("there are 1 to " + std::to_string(kMostExperts) + " experts");
  Memory memory = std::visit(
      [&](auto& w) {
        check_shape(w);
        Memory panels(experts == 1 ? packed_bytes(w)
                                   : size_t(checked_product("the matrices of experts",
                                                            {experts, int64_t(expert_bytes(w))})));
        w.panels = panels.data();
        w.bias = nullptr;
        return panels;
      },
      matrix);
  if (!shape_.trial) place(memory);
  regions_.emplace_back(memory.data(), memory.bytes());
  matrices_.push_back({matrix, std::move(memory), experts});
  return MatrixId(matrices_.size()) - 1;
}

namespace {

// Where rows from `first` on of a matrix go; throws if they lie outside it.
PartPlace place_of(int64_t n, bool gated, int64_t first, int64_t count) {
  const bool fits = gated ? count == n && (first == 0 || first == n)
                          : count >= 1 && lies_within(first, count, n);
  if (!fits) refuse("a part lies outside its matrix");
  return gated ? gated_part(first == 0 ? 0 : 1) : joined_part(first, count, n);
}

}  // namespace

template <class Kind>
Executor::Destination Executor::destination(const Kind& w, MatrixId id, int64_t first,
                                            int64_t count) {
  const Matrix& stack = matrix(id);
  const int64_t rows = w.gated ? 2 * w.n : w.n;
  const int64_t expert = first < 0 ? -1 : first / rows;
  if (expert < 0 || expert >= stack.experts) refuse("a part lies outside its matrix");
  return {stack.memory.data() + size_t(expert) * expert_bytes(w),
          place_of(w.n, w.gated, first % rows, count)};
}

void Executor::pack_rows(MatrixId id, int64_t first, int64_t count,
                         std::span<const std::byte> rows) {
  const PackedMatrix& w = matrix_of<PackedMatrix>(id);
  const auto [panels, place] = destination(w, id, first, count);
  if (rows.size() != size_t(count * w.k) * elem_bytes(w.elem))
    refuse("a part's bytes are not its rows times the matrix's columns");
  pool_.run([&](Worker& worker) {
    pack_part(w.elem, rows.data(), count, w.k, place, panels, worker);
  });
}

bool Executor::pack_int_rows(MatrixId id, int64_t first, int64_t count,
                             std::span<const int8_t> codes, std::span<const float> scales,
                             std::span<const int8_t> zeros) {
  const IntMatrix& w = matrix_of<IntMatrix>(id);
  const auto [panels, place] = destination(w, id, first, count);
  if (codes.size() != size_t(count * w.k) ||
      scales.size() != size_t(count * int_groups(w.k, w.group)) ||
      zeros.size() != (w.zero_points ? scales.size() : 0))
    refuse("a part's codes, scales or zeros are not its rows times the matrix's columns or groups");
  std::atomic<bool> fits = true;
  pool_.run([&](Worker& worker) {
    const GroupRows rows{codes.data(), scales.data(), zeros.data()};
    if (!pack_int_part(w, rows, count, place, panels, worker)) fits = false;
  });
  return fits;
}

bool Executor::pack_grid_rows(MatrixId id, int64_t first, int64_t count, Elem elem,
                              std::span<const std::byte> rows) {
  const GridMatrix& w = matrix_of<GridMatrix>(id);
  const auto [panels, place] = destination(w, id, first, count);
  if (elem == Elem::i32 || rows.size() != size_t(count * w.k) * elem_bytes(elem))
    refuse("a part's bytes are not its rows times the matrix's columns");
  std::atomic<bool> finite = true;
  pool_.run([&](Worker& worker) {
    if (!quantize_grid_part(w, elem, rows.data(), count, place, panels, worker)) finite = false;
  });
  return finite;
}

void Executor::pack_block_rows(MatrixId id, int64_t first, int64_t count,
                               std::span<const std::byte> rows) {
  const BlockMatrix& w = matrix_of<BlockMatrix>(id);
  const auto [panels, place] = destination(w, id, first, count);
  if (rows.size() != size_t(count * block_row_bytes(w.format, w.k)))
    refuse("a part's bytes are not its rows of blocks");
  pool_.run([&](Worker& worker) {
    pack_block_part(w, rows.data(), count, place, panels, worker);
  });
}

void Executor::pack_codebook_rows(MatrixId id, int64_t first, int64_t count,
                                  std::span<const std::byte> codes, std::span<const float> values,
                                  std::span<const int32_t> ends, std::span<const int32_t> columns,
                                  std::span<const float> outliers, int64_t first_outlier) {
  const CodebookMatrix& w = matrix_of<CodebookMatrix>(id);
  const auto [panels, place] = destination(w, id, first, count);
  if (codes.size() != size_t(count * codebook_row_bytes(w.bits, w.k)) ||
      values.size() != size_t(count) << w.bits || ends.size() != size_t(count) + 1 ||
      columns.size() != outliers.size())
    refuse("a part's codes, values or outliers are not those of its rows");
  if (!lies_within(first_outlier, int64_t(columns.size()), w.outliers) ||
      !outliers_in_order(w, ends, columns))
    refuse("a part's outliers do not lie in its matrix, row by row in ascending columns");
  const CodebookRows rows{codes.data(), values.data(), ends.data(), columns.data(), outliers.data()};
  pool_.run([&](Worker& worker) {
    pack_codebook_part(w, rows, count, first_outlier, place, panels, worker);
  });
}

void Executor::round_rows(Elem elem, std::span<const std::byte> rows, int64_t count, int64_t k,
                          int bits, int64_t group, std::span<int8_t> codes,
                          std::span<float> scales, std::span<int8_t> zeros) {
  if (count < 1 || k < 1 || (bits != 8 && bits != 4) || group < 0 || group > INT32_MAX ||
      elem == Elem::i32 ||
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

}  // namespace penstock
