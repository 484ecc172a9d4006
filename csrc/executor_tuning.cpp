// Tuning of an executor's products: what may be changed, and how long they take.
#include <time.h>

#include <algorithm>
#include <bit>
#include <set>

#include "executor.h"
#include "refuse.h"

namespace penstock {
namespace {

// Of the calling thread on a core: time that other programs take from it does not count.
double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Numbers of both signs up to 1, other ones in each row; in bfloat16 their upper halves, exactly.
template <class T>
void fill_rows(const Array& x, Share rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    T* const row = x.row<T>(r);
    for (int64_t i = 0; i < x.cols; ++i) {
      const uint32_t mixed = uint32_t(r * x.cols + i) * 2654435761u;
      const float value = float(int(mixed >> 24) - 128) * (1.0f / 128);
      if constexpr (std::is_same_v<T, uint16_t>)
        row[i] = uint16_t(std::bit_cast<uint32_t>(value) >> 16);
      else
        row[i] = value;
    }
  }
}

}  // namespace

std::vector<Executor::Parameter> Executor::parameters(MatrixId id) {
  return std::visit(
      [](const auto& w) {
        std::vector<Parameter> found;
        for (const auto& field : tuned_fields(w))
          found.push_back({field.name, w.tuning.*field.value, field.least, field.most});
        return found;
      },
      matrix(id).packed);
}

void Executor::set_parameter(MatrixId id, std::string_view name, int64_t value) {
  AnyMatrix changed = matrix(id).packed;
  std::visit(
      [&](auto& w) {
        for (const auto& field : tuned_fields(w)) {
          if (field.name != name) continue;
          if (value < field.least || value > field.most)
            refuse(std::string(name) + " is " + std::to_string(value) + ", not in [" +
                   std::to_string(field.least) + ", " + std::to_string(field.most) + "]");
          w.tuning.*field.value = value;
          return;
        }
        refuse("a product has no parameter " + std::string(name));
      },
      changed);
  const auto take_over = [&](LinearOp& product) {
    std::visit(
        [&](auto& w) { w.tuning = std::get<std::remove_cvref_t<decltype(w)>>(changed).tuning; },
        product.w);
  };
  // Memory may be refused, and then nothing has changed: all products of the matrix get it before one is.
  for (Op& op : ops_) {
    const LinearOp* const product = std::get_if<LinearOp>(&op);
    if (!product || product->matrix != id) continue;
    LinearOp tuned = *product;
    take_over(tuned);
    reserve_for(tuned);
  }
  for (Op& op : ops_) {
    LinearOp* const product = std::get_if<LinearOp>(&op);
    if (product && product->matrix == id) take_over(*product);
  }
  matrix(id).packed = changed;
}

const LinearOp& Executor::product_of(MatrixId id, int64_t rows) const {
  for (const Op& op : ops_) {
    const LinearOp* const product = std::get_if<LinearOp>(&op);
    if (!product || product->matrix != id) continue;
    if (rows < 1 || rows > most_rows(product->rows))
      refuse("a product has 1 to " + std::to_string(most_rows(product->rows)) + " rows, not " +
             std::to_string(rows));
    return *product;
  }
  refuse("no product has this matrix");
}

int64_t Executor::product_rows(MatrixId id) const { return most_rows(product_of(id, 1).rows); }

void Executor::fill_inputs(std::span<const MatrixId> matrices, int64_t rows) {
  std::set<const std::byte*> filled;
  for (const MatrixId id : matrices) {
    const Array& x = product_of(id, rows).x;
    if (!filled.insert(x.data).second) continue;
    pool_.run([&](Worker& worker) {
      const Share mine = share(rows, worker);
      if (x.elem == Elem::bf16) fill_rows<uint16_t>(x, mine);
      else fill_rows<float>(x, mine);
    });
  }
}

double Executor::time_product(MatrixId id, int64_t rows) {
  const LinearOp& op = product_of(id, rows);
  std::vector<double> spent(size_t(shape_.threads));
  pool_.run([&](Worker& worker) {
    worker.barrier->wait(worker);  // none is still asleep when another starts
    const double start = thread_seconds();
    std::visit(
        [&](const auto& w) { linear(w, op.x, op.out, rows, op.gate, shared_.data(), worker); },
        op.w);
    spent[size_t(worker.id)] = thread_seconds() - start;
  });
  return *std::max_element(spent.begin(), spent.end());
}

}  // namespace penstock
