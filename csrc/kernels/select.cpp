#include "select.h"

#include <cstring>

#include "../pool.h"

namespace penstock {

void select_rows(const SelectRowsArgs& args, const StepView& step, const Worker& worker) {
  const size_t bytes = size_t(args.x.cols) * elem_bytes(args.x.elem);
  const Share mine = share(step.logits, worker);
  for (int64_t r = mine.begin; r < mine.end; ++r)
    std::memcpy(args.out.data + size_t(r) * bytes,
                args.x.data + size_t(step.logit_rows[r]) * bytes, bytes);
}

}  // namespace penstock
