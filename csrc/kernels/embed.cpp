#include "embed.h"

#include "../pool.h"
#include "../simd.h"

namespace penstock {
namespace {

template <class T>
void widen(const std::byte* table, int64_t row, float* out, int64_t cols) {
  constexpr int lanes = f32x16::lanes;
  const T* x = reinterpret_cast<const T*>(table) + row * cols;
  int64_t i = 0;
  for (; i + lanes <= cols; i += lanes) f32x16::load(x + i).store(out + i);
  if (i < cols) f32x16::load_n(x + i, int(cols - i)).store_n(out + i, int(cols - i));
}

template <class T>
void add_row(const std::byte* table, int64_t row, const float* x, float* out, int64_t cols) {
  const T* position = reinterpret_cast<const T*>(table) + row * cols;
  for (int64_t i = 0; i < cols; i += f32x16::lanes) {
    const int n = int(cols - i < f32x16::lanes ? cols - i : f32x16::lanes);
    (f32x16::load_n(x + i, n) + f32x16::load_n(position + i, n)).store_n(out + i, n);
  }
}

}  // namespace

void embed(const EmbedArgs& args, const StepView& step, const Worker& worker) {
  const auto row = args.elem == Elem::f32    ? widen<float>
                   : args.elem == Elem::bf16 ? widen<bf16>
                                             : widen<f16>;
  const Share mine = share(step.tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    row(args.table, step.token_ids[t], args.out.row<float>(t), args.out.cols);
}

void embed(const BlockEmbedArgs& args, const StepView& step, const Worker& worker) {
  const Share mine = share(step.tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    block_row(args.table, step.token_ids[t], args.out.row<float>(t));
}

void embed(const IntEmbedArgs& args, const StepView& step, const Worker& worker) {
  const Share mine = share(step.tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    int_row(args.table, step.token_ids[t], args.out.row<float>(t));
}

void add_positions(const AddPositionsArgs& args, const StepView& step, const Worker& worker) {
  const auto row = args.elem == Elem::f32    ? add_row<float>
                   : args.elem == Elem::bf16 ? add_row<bf16>
                                             : add_row<f16>;
  const Share mine = share(step.tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    row(args.table, step.positions[t] + args.offset, args.x.row<const float>(t),
        args.out.row<float>(t), args.out.cols);
}

}  // namespace penstock
