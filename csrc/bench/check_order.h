// The order of a walk against the loops that it stands for.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "../kernels/gemm_order.h"
#include "check_expect.h"

namespace penstock::check {

inline std::string text(const Place& at) {
  std::string line;
  for (const int64_t value : {at.chunk, at.stretch, at.unit, at.slice, int64_t(at.panels)})
    line += std::to_string(value) + " ";
  return line;
}

inline void check_order(const Order& order) {
  std::vector<Place> places;
  for (int64_t chunk = order.share.first; chunk < order.share.last; chunk += order.wide) {
    const int64_t end = std::min(chunk + order.wide, order.share.last);
    for (int64_t stretch = 0; stretch < order.slices; stretch += order.deep)
      for (int64_t unit = chunk; unit < end; unit += order.stride)
        for (int64_t s = stretch; s < std::min(stretch + order.deep, order.slices); ++s)
          places.push_back({chunk, stretch, unit, s,
                            int(std::min(order.stride, end - unit)) * order.per_unit});
  }
  const std::string cuts =
      "order of " + std::to_string(order.share.size()) + " units, " +
      std::to_string(order.slices) + " slices by " + std::to_string(order.stride) + ", " +
      std::to_string(order.wide) + ", " + std::to_string(order.deep) + ": ";
  Place at = order.first();
  for (const Place& place : places) {
    if (text(at) != text(place)) return expect(false, cuts + text(at) + "not " + text(place));
    expect(order.ends(at) == (at.slice + 1 == order.slices), cuts + "ends");
    at = order.after(at);
  }
  expect(at.panels == 0 && order.after(at).panels == 0, cuts + "no end");
}

inline void check_orders(int count, std::mt19937& rng) {
  const auto draw = [&](int64_t least, int64_t most) {
    return least + int64_t(rng() % uint64_t(most - least + 1));
  };
  for (int i = 0; i < count; ++i) {
    const int64_t first = draw(0, 40);
    Order order({first, first + draw(0, 30)}, int(draw(1, 2)), int(draw(1, 4)), draw(1, 12));
    if (draw(0, 3)) order.wide = draw(0, 1) ? draw(1, 40) : draw(1, 8) * order.stride;
    if (draw(0, 3)) order.deep = draw(1, 14);
    check_order(order);
  }
}

}  // namespace penstock::check
