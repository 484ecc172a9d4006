#include "states.h"

#include <algorithm>

namespace penstock {

std::span<const Snapshot> snapshots_of(const StepView& step, int sequence) {
  const auto all = step.states.snapshots;
  const auto before = [](const Snapshot& one, int number) { return one.sequence < number; };
  const auto first = std::lower_bound(all.begin(), all.end(), sequence, before);
  const auto end = std::lower_bound(first, all.end(), sequence + 1, before);
  return {first, end};
}

}  // namespace penstock
