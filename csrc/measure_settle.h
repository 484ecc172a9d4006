// Repeats a measurement until its best values agree.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "measure.h"

namespace penstock {

constexpr double kAgreement = 0.02;      // of the best three
constexpr double kLeastSeconds = 0.3;    // clocks take tens of milliseconds to rise
constexpr double kSampleSeconds = 1e-3;  // less than a time slice: some samples meet no neighbour on the core

inline double seconds_now() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

class BestThree {
 public:
  void add(double rate) {
    for (double& kept : best_)
      if (rate > kept) std::swap(rate, kept);
  }
  double best() const { return best_[0]; }
  double spread() const { return best_[0] > 0 ? 1 - best_[2] / best_[0] : 1; }

 private:
  std::array<double, 3> best_{};  // descending; 0: none yet
};

// sample() gives a rate; it is called once at least.
template <class F>
Measured settle(double seconds, F&& sample) {
  const double start = seconds_now();
  BestThree rates;
  double elapsed = 0;
  do {
    rates.add(sample());
    elapsed = seconds_now() - start;
  } while (elapsed < std::min(seconds, kLeastSeconds) ||
           (elapsed < seconds && rates.spread() > kAgreement));
  return {rates.best(), rates.spread()};
}

}  // namespace penstock
