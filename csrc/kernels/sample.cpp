#include "sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "sample_weights.h"

namespace penstock {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Least weights of what top-p tries before it looks at the whole row; language models mostly stop
// at the first. A row whose weights sum to more than kFlat is not worth trying.
constexpr int64_t kTopPSteps[] = {kOne >> 6, kOne >> 12};
constexpr int64_t kFlat = 64 * kOne;

// Weights fall into buckets by exponent and three bits of the mantissa.
constexpr int kBucketShift = 20;
constexpr uint32_t kFirstBucket = 127u << (23 - kBucketShift);  // of 1.0
constexpr size_t kBuckets = size_t(kWeightBits + 1) << (23 - kBucketShift);

// `bits` (64 of them, uniform) scaled to 0 <= result < limit.
int64_t below(int64_t limit, uint64_t bits) {
  return int64_t((static_cast<unsigned __int128>(bits) * uint64_t(limit)) >> 64);
}

// The likelier first; among equals, the lower id.
bool before(const RankedToken& a, const RankedToken& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Leaves the logits whose bits are set. Most words of a mask are all zeros or all ones.
void forbid(float* logits, int64_t size, const uint32_t* mask) {
  for (int64_t first = 0; first < size; first += 32) {
    const uint32_t word = mask[first / 32];
    if (word == ~uint32_t(0)) continue;
    const int64_t count = std::min(int64_t(32), size - first);
    for (int64_t j = 0; j < count; ++j)
      logits[first + j] = (word >> j) & 1 ? logits[first + j] : -kInfinity;
  }
}

}  // namespace

RowSampler::RowSampler(int64_t vocabulary)
    : vocabulary_(vocabulary),
      row_(std::make_unique_for_overwrite<float[]>(size_t(vocabulary))),
      group_peaks_(size_t(groups_of(vocabulary))),
      row_weights_(
          std::make_unique_for_overwrite<float[]>(size_t(groups_of(vocabulary) * kGroup))),
      group_sums_(size_t(groups_of(vocabulary))),
      group_largest_(size_t(groups_of(vocabulary))),
      bucket_sums_(kBuckets),
      ids_(std::make_unique_for_overwrite<int32_t[]>(size_t(vocabulary))),
      weights_(std::make_unique_for_overwrite<int64_t[]>(size_t(vocabulary))) {
  order_.reserve(size_t(vocabulary));
  top_.reserve(size_t(vocabulary));
  values_.reserve(size_t(vocabulary));
}

Choice RowSampler::choose(const float* logits, const SampleState& state, const uint32_t* mask) {
  // Looked at before masks are applied, so that the error blames the model or the options.
  Peak peak = peak_of(logits, vocabulary_);
  if (peak.has_nan) return {-1, SampleError::not_a_number};
  if (peak.value == kInfinity) return {-1, SampleError::infinite};
  if (peak.value == -kInfinity) return {-1, SampleError::only_negative_infinite};
  if (state.changes_logits() || mask) {
    std::memcpy(row_.get(), logits, size_t(vocabulary_) * sizeof(float));
    state.apply(row_.get());
    if (mask) forbid(row_.get(), vocabulary_, mask);
    logits = row_.get();
    peak = peak_of(logits, vocabulary_);
    if (peak.has_nan || !std::isfinite(peak.value)) return {-1, SampleError::no_token_left};
  }
  if (state.options().temperature == 0.0)
    return {int32_t(std::find(logits, logits + vocabulary_, peak.value) - logits),
            SampleError::none};
  return {draw(logits, peak.value, state), SampleError::none};
}

int32_t RowSampler::draw(const float* logits, float peak, const SampleState& state) {
  const SampleOptions& o = state.options();
  const double temperature = std::max(o.temperature, double(std::numeric_limits<float>::min()));
  const Weigher weigher{peak, float(1.0 / temperature)};
  const bool top_k = o.top_k > 0 && o.top_k < vocabulary_, top_p = o.top_p < 1.0;
  if (!top_k && !top_p && o.min_p == 0.0)
    return pick_from_row(logits, weigher, weigh(logits, weigher, false), state.draw());
  Cutoff cut{std::max(int64_t(std::ceil(o.min_p * double(kOne))), int64_t(1)), vocabulary_};
  int64_t total;
  if (top_k) {
    find_top(logits, o.top_k);
    total = weigh_top(logits, weigher);
  } else {
    total = weigh(logits, weigher, true);
  }
  if (top_p) {
    const int64_t target =
        std::clamp(int64_t(std::ceil(o.top_p * double(total))), int64_t(1), total);
    const Cutoff nucleus = top_k ? cutoff(target) : row_cutoff(total, target);
    if (nucleus.weight >= cut.weight) cut = nucleus;
  }
  if (!top_k) collect(cut.weight, kOne);
  drop_below(cut);
  return pick(state.draw());
}

// Fills the groups' sums and largest weights, and with `keep` the weights; returns the sum of all.
int64_t RowSampler::weigh(const float* logits, const Weigher& weigher, bool keep) {
  int64_t total = 0;
  for (size_t g = 0; g < group_sums_.size(); ++g) {
    const int64_t first = int64_t(g) * kGroup;
    const GroupWeights w(logits + first, vocabulary_ - first, weigher);
    int64_t sum = 0;
    for (int64_t j = 0; j < kGroup; ++j) sum += w[j];
    group_sums_[g] = sum;
    total += sum;
    if (!keep) continue;
    f32x16 largest = f32x16::zero();
    for (int64_t j = 0; j < kGroup; j += kLanes) {
      const f32x16 v = f32x16::load(w.value + j);
      v.store(row_weights_.get() + first + j);
      largest = max(v, largest);
    }
    group_largest_[g] = int64_t(hmax(largest));
  }
  return total;
}

// Makes candidates of the tokens in top_; returns the sum of their weights.
int64_t RowSampler::weigh_top(const float* logits, const Weigher& weigher) {
  const size_t count = candidates_ = top_.size();
  for (size_t i = 0; i < count; ++i) ids_[i] = top_[i].id;
  std::sort(ids_.get(), ids_.get() + count);
  int64_t sum = 0;
  for (size_t first = 0; first < count; first += size_t(kGroup)) {
    const size_t some = std::min(size_t(kGroup), count - first);
    float gathered[kGroup];
    for (size_t j = 0; j < some; ++j) gathered[j] = logits[ids_[first + j]];
    const GroupWeights w(gathered, int64_t(some), weigher);
    for (size_t j = 0; j < some; ++j) sum += weights_[first + j] = w[int64_t(j)];
  }
  return sum;
}

// Makes candidates of the tokens of least <= weight <= most, from what weigh() kept; returns their
// sum. Written without branches: which tokens qualify cannot be predicted.
int64_t RowSampler::collect(int64_t least, int64_t most) {
  int64_t sum = 0;
  size_t count = 0;
  for (size_t g = 0; g < group_sums_.size(); ++g) {
    if (group_largest_[g] < least) continue;
    const int64_t end = std::min(vocabulary_, int64_t(g + 1) * kGroup);
    for (int64_t i = int64_t(g) * kGroup; i < end; ++i) {
      const int64_t weight = int64_t(row_weights_[size_t(i)]);
      const bool in = weight >= least && weight <= most;
      ids_[count] = int32_t(i);
      weights_[count] = weight;
      count += in;
      sum += in ? weight : 0;
    }
  }
  candidates_ = count;
  return sum;
}

// What top-p keeps of the whole row, whose weights sum to `total`.
RowSampler::Cutoff RowSampler::row_cutoff(int64_t total, int64_t target) {
  if (total <= kFlat)
    for (const int64_t least : kTopPSteps)
      if (collect(least, kOne) >= target) return cutoff(target);
  // Which bucket the sum reaches the target in; then only that one is looked into.
  std::fill(bucket_sums_.begin(), bucket_sums_.end(), 0);
  for (int64_t i = 0; i < vocabulary_; ++i) {
    const int64_t weight = int64_t(row_weights_[size_t(i)]);
    if (weight == 0) continue;
    const uint32_t bits = std::bit_cast<uint32_t>(float(weight));  // exact: it came from a float
    bucket_sums_[(bits >> kBucketShift) - kFirstBucket] += weight;
  }
  size_t bucket = kBuckets - 1;
  for (; bucket_sums_[bucket] < target; --bucket) target -= bucket_sums_[bucket];
  const auto least_of = [](size_t b) {
    return int64_t(
        std::ceil(std::bit_cast<float>(uint32_t(b + kFirstBucket) << kBucketShift)));
  };
  collect(least_of(bucket), least_of(bucket + 1) - 1);
  return cutoff(target);
}

// Keeps the candidates above the cutoff, and of those equal to it the first.
void RowSampler::drop_below(const Cutoff& cut) {
  int64_t ties = cut.ties;
  size_t kept = 0;
  for (size_t i = 0; i < candidates_; ++i) {
    if (weights_[i] < cut.weight || (weights_[i] == cut.weight && ties-- <= 0)) continue;
    ids_[kept] = ids_[i];
    weights_[kept++] = weights_[i];
  }
  candidates_ = kept;
}

// What keeps the fewest largest candidates that sum to `target`: by partition around a pivot into
// larger, equal and smaller, and again into the part where the sum reaches the target. On average
// two or three looks a candidate.
RowSampler::Cutoff RowSampler::cutoff(int64_t target) {
  values_.assign(weights_.get(), weights_.get() + candidates_);
  int64_t* first = values_.data();
  int64_t* last = first + values_.size();
  for (;;) {
    const int64_t a = first[0], b = first[(last - first) / 2], c = last[-1];
    const int64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    int64_t* const equal =
        std::partition(first, last, [pivot](int64_t v) { return v > pivot; });
    int64_t larger = 0;
    for (const int64_t* v = first; v < equal; ++v) larger += *v;
    if (larger >= target) {
      last = equal;
      continue;
    }
    int64_t* const smaller =
        std::partition(equal, last, [pivot](int64_t v) { return v == pivot; });
    const int64_t left = target - larger;
    if ((smaller - equal) * pivot >= left) return {pivot, (left + pivot - 1) / pivot};
    target = left - (smaller - equal) * pivot;
    first = smaller;
  }
}

// The candidate that `bits` chooses with probability weight / sum: the first whose running sum
// exceeds bits * sum / 2^64.
int32_t RowSampler::pick(uint64_t bits) const {
  int64_t total = 0;
  for (size_t i = 0; i < candidates_; ++i) total += weights_[i];
  int64_t at = below(total, bits);
  size_t i = 0;
  while (at >= weights_[i]) at -= weights_[i++];
  return ids_[i];
}

// As pick, where every token of the row is a candidate.
int32_t RowSampler::pick_from_row(const float* logits, const Weigher& weigher, int64_t total,
                                  uint64_t bits) const {
  int64_t at = below(total, bits);
  size_t g = 0;
  while (at >= group_sums_[g]) at -= group_sums_[g++];
  const int64_t first = int64_t(g) * kGroup;
  const GroupWeights w(logits + first, vocabulary_ - first, weigher);
  int64_t j = 0;
  while (at >= w[j]) at -= w[j++];
  return int32_t(first + j);
}

// Fills top_ with the `count` largest, in no order. The count-th largest of the groups' maxima is
// at most the count-th largest element; only what reaches it is looked at.
void RowSampler::find_top(const float* logits, int64_t count) {
  top_.clear();
  count = std::min(count, vocabulary_);
  if (count <= 0) return;
  const int64_t groups = groups_of(vocabulary_);
  for (int64_t g = 0; g < groups; ++g) {
    const float* x = logits + g * kGroup;
    const int64_t size = std::min(kGroup, vocabulary_ - g * kGroup);
    if (size == kGroup) {
      f32x16 best = f32x16::load(x);
      for (int c = 1; c < 4; ++c) best = max(f32x16::load(x + c * kLanes), best);
      group_peaks_[size_t(g)] = hmax(best);
    } else {
      group_peaks_[size_t(g)] = *std::max_element(x, x + size);
    }
  }
  if (count <= groups) order_ = group_peaks_;
  else order_.assign(logits, logits + vocabulary_);
  std::nth_element(order_.begin(), order_.begin() + (count - 1), order_.end(), std::greater<>());
  const float bound = order_[size_t(count - 1)];
  for (int64_t g = 0; g < groups; ++g) {
    if (group_peaks_[size_t(g)] < bound) continue;
    for (int64_t i = g * kGroup; i < std::min(vocabulary_, (g + 1) * kGroup); ++i)
      if (logits[i] >= bound) top_.push_back({int32_t(i), logits[i]});
  }
  if (int64_t(top_.size()) <= count) return;
  std::nth_element(top_.begin(), top_.begin() + (count - 1), top_.end(), before);
  top_.resize(size_t(count));
}

TokenReport RowSampler::report(const float* logits, int32_t token, int count) {
  TokenReport result;
  const float chosen = logits[token];
  result.logit = chosen;
  result.peak = peak_of(logits, vocabulary_).value;
  result.total = weigh(logits, {result.peak, 1.0f}, false);
  int64_t larger = 0;
  for (int64_t i = 0; i < vocabulary_; ++i) larger += logits[i] > chosen;
  for (int64_t i = 0; i < token; ++i) larger += logits[i] == chosen;
  result.rank = larger + 1;
  find_top(logits, count);
  std::sort(top_.begin(), top_.end(), before);
  result.top = top_;
  return result;
}

}  // namespace penstock
