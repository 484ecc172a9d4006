#include "select.h"

#include <cstring>

#include "../pool.h"

namespace penstock {

void select_rows(const SelectRowsArgs& args, const StepView& step, const Worker& worker) {
  const size_t element = elem_bytes(args.x.elem);
  const size_t bytes = size_t(args.x.cols) * element;
  const size_t x_stride = size_t(args.x.stride) * element;
  const size_t out_stride = size_t(args.out.stride) * element;
  const Share mine = share(step.selected(), worker);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    const int32_t from =
        r < step.logits ? step.logit_rows[r] : step.hidden_rows[r - step.logits];
    std::memcpy(args.out.data + size_t(r) * out_stride, args.x.data + size_t(from) * x_stride,
                bytes);
  }
}

}  // namespace penstock
