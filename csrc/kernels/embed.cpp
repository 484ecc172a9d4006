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

}  // namespace

void embed(const EmbedArgs& args, const StepView& step, const Worker& worker) {
  const auto row = args.elem == Elem::f32    ? widen<float>
                   : args.elem == Elem::bf16 ? widen<bf16>
                                             : widen<f16>;
  const Share mine = share(step.tokens, worker);
  for (int64_t t = mine.begin; t < mine.end; ++t)
    row(args.table, step.token_ids[t], args.out.row<float>(t), args.out.cols);
}

}  // namespace penstock
