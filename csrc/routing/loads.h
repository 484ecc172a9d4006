// The open requests of replicas, in tokens of work that is left.
#pragma once

#include <cstdint>
#include <vector>

#include "levels.h"

namespace penstock {

// penstock/routing/loads.py says what each counts. Grains are at least 1.
struct LoadWeights {
  int64_t decode_tokens, grain, given_grain;
  double uncached, lost;
};

// What replicas have to do; defined by penstock/routing/loads.py. Throws UnknownReplica for a replica
// that has not joined, and std::invalid_argument for more than 2^40 tokens, of which sums of millions
// of open requests are still numbers.
class LoadBook {
 public:
  // Throws std::invalid_argument for grains below 1.
  explicit LoadBook(const LoadWeights& weights);

  void join(size_t replica);
  void leave(size_t replica);
  void begin(size_t replica, int64_t tokens);
  void prefilled(size_t replica, int64_t tokens);
  void end(size_t replica, int64_t tokens);
  void catch_up(size_t replica, const ReplicaSet& others);

  int64_t prefill(size_t replica) const { return load(replica).prefill; }
  int64_t decoding(size_t replica) const { return load(replica).decoding; }

  const LoadWeights& weights() const { return weights_; }
  const LoadLevels& work() const { return work_; }
  const LoadLevels& given() const { return given_; }
  const LoadLevels& requests() const { return requests_; }

 private:
  struct Load {
    bool joined = false;
    int64_t given = 0;
    int64_t requests = 0, prefill = 0, decoding = 0;
  };

  Load& load(size_t replica);
  const Load& load(size_t replica) const;
  void put_work(size_t replica, const Load& load);

  LoadWeights weights_;
  std::vector<Load> loads_;
  LoadLevels work_, given_, requests_;
};

}  // namespace penstock
