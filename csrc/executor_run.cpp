// Running an executor's steps.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "executor.h"
#include "kernels/move_slots.h"
#include "step_check.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

int64_t rows_of(RowKind kind, const StepView& step) {
  switch (kind.base) {
    case RowBase::tokens: return int64_t(step.tokens) * kind.times;
    case RowBase::selected: return int64_t(step.selected()) * kind.times;
    case RowBase::logits: break;
  }
  return int64_t(step.logits) * kind.times;
}

}  // namespace

void Executor::prepare(const StepView& step, const CacheEdits& edits, const int32_t* adapters) {
  const bool moves = movable_.size() == kv_parts_.size();
  check_step(step, edits, shape_, {kv_groups_, feature_cols_, moves, branches_, state_slots_, state_log_});
  check_adapters(step.sequences, adapters, adapter_slots_);
  if (known_positions_ < shape_.max_positions &&
      *std::max_element(step.positions, step.positions + step.tokens) >= known_positions_)
    throw std::out_of_range("a step has positions beyond the tables that are filled");
  for (const auto& work : works_) build_attention_work(step, *work);
  if (adapter_slots_ > 0) sort_by_adapter(step, adapters);
}

void Executor::edit_cache(const CacheEdits& edits, const Worker& worker) const {
  // Whole parts of all pages, and the same bytes of all slots: an edit may feed the next.
  const Share mine = share(int64_t(kv_parts_.size()), worker);
  const auto copies = edits.block_copies;
  const size_t bytes = kv_part_bytes_;
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    if (!edits.slot_moves.empty()) move_slots(movable_[size_t(i)], edits.slot_moves);
    std::byte* const base = kv_parts_[size_t(i)].data();
    for (size_t c = 0; c + 1 < copies.size(); c += 2)
      if (copies[c] != copies[c + 1])
        std::memcpy(base + size_t(copies[c + 1]) * bytes, base + size_t(copies[c]) * bytes, bytes);
  }
  const auto states = edits.state_copies;
  if (states.empty()) return;
  constexpr int64_t kLine = 64;
  const Share lines = share(int64_t(state_slot_bytes_) / kLine, worker);
  for (size_t c = 0; c + 1 < states.size(); c += 2)
    if (states[c] != states[c + 1])
      std::memcpy(state_slot(states[c + 1]).data() + lines.begin * kLine,
                  state_slot(states[c]).data() + lines.begin * kLine,
                  size_t((lines.end - lines.begin) * kLine));
}

struct Executor::Runner {
  const StepView& step;
  Worker& worker;
  std::byte* shared;
  RankGroup* ranks;
  const AdapterRows* adapted;

  void operator()(const EmbedOp& op) const { embed(op.args, step, worker); }
  void operator()(const BlockEmbedOp& op) const { embed(op.args, step, worker); }
  void operator()(const IntEmbedOp& op) const { embed(op.args, step, worker); }
  void operator()(const AddPositionsOp& op) const { add_positions(op.args, step, worker); }
  void operator()(const AddNormOp& op) const {
    add_norm(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const RmsNormOp& op) const {
    rms_norm(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const LayerNormOp& op) const {
    layer_norm(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const LinearOp& op) const {
    const int64_t rows = rows_of(op.rows, step);
    if (rows == 0) return;
    std::visit([&](const auto& w) { linear(w, op.x, op.out, rows, op.gate, shared, worker); },
               op.w);
  }
  void operator()(const HeadLinearOp& op) const {
    head_linear(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const RouteOp& op) const { route(op.args, rows_of(op.rows, step), worker); }
  void operator()(const ExpertLinearOp& op) const {
    std::visit(
        [&](const auto& w) { expert_linear(w, op.args, rows_of(op.rows, step), worker); }, op.w);
  }
  void operator()(const ScaleRowsOp& op) const {
    scale_rows(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const CombineExpertsOp& op) const {
    combine_experts(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const HeadNormOp& op) const {
    head_norm(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const RopeOp& op) const { rope(op.args, step, worker); }
  void operator()(const KvWriteOp& op) const { kv_write(op.args, step, worker); }
  void operator()(const RopeWriteOp& op) const { rope_write(op.args, step, worker); }
  void operator()(const AttentionOp& op) const { attention(op.args, step, *op.work, worker); }
  void operator()(const StateConvOp& op) const { state_conv(op.args, step, worker); }
  void operator()(const GatedDeltaOp& op) const { gated_delta(op.args, step, worker); }
  void operator()(const SelectiveScanOp& op) const { selective_scan(op.args, step, worker); }
  void operator()(const GatedNormOp& op) const {
    gated_norm(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const ShortConvOp& op) const { short_conv(op.args, step, worker); }
  void operator()(const SelectRowsOp& op) const { select_rows(op.args, step, worker); }
  void operator()(const ArgmaxOp& op) const { argmax(op.args, rows_of(op.rows, step), worker); }
  void operator()(const FeaturesOp& op) const { copy_features(op.args, step, worker); }
  void operator()(const JoinOp& op) const { join(op.args, rows_of(op.rows, step), worker); }
  void operator()(const TurnRowsOp& op) const { turn_rows(op.args, rows_of(op.rows, step), worker); }
  void operator()(const TurnBackOp& op) const { turn_back(op.args, rows_of(op.rows, step), worker); }
  void operator()(const GatherColumnsOp& op) const {
    gather_columns(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const AddActivatedOp& op) const {
    add_activated(op.args, rows_of(op.rows, step), worker);
  }
  void operator()(const GateOp& op) const { gate(op.args, rows_of(op.rows, step), worker); }
  void operator()(const ScaleOp& op) const { scale(op.args, rows_of(op.rows, step), worker); }
  void operator()(const SoftCapOp& op) const { soft_cap(op.args, rows_of(op.rows, step), worker); }
  void operator()(const XieluOp& op) const { xielu(op.args, rows_of(op.rows, step), worker); }
  void operator()(const ClampOp& op) const { clamp(op.args, rows_of(op.rows, step), worker); }
  void operator()(const ScaleByPositionOp& op) const {
    scale_by_position(op.args, step, worker);
  }
  void operator()(const AdapterDownOp& op) const {
    adapter_down(op.args, adapted[size_t(op.rows.base)], worker);
  }
  void operator()(const AdapterUpOp& op) const {
    adapter_up(op.args, adapted[size_t(op.rows.base)], worker);
  }
  void operator()(const AllGatherOp& op) const {
    all_gather(op.args, rows_of(op.rows, step), *ranks, worker);
  }
};

class Executor::Writing {
 public:
  Writing(PagesAhead* pages, const StepView& step) : pages_(pages) {
    if (!pages) return;
    int32_t last = 0;  // sequences' newest blocks; of a prompt's they are the last ones that were handed out
    for (const KvTables& tables : step.groups)
      for (int s = 1; s <= step.sequences; ++s)
        if (tables.block_starts[s] > tables.block_starts[s - 1])
          last = std::max(last, tables.block_ids[tables.block_starts[s] - 1]);
    pages->begin_step(last);
  }
  ~Writing() {
    if (pages_) pages_->end_step();
  }
  // For every worker, before anything is written.
  void clear_pages(Worker& worker) const {
    if (!pages_ || !pages_->missing()) return;
    pages_->clear_missing(worker);
    worker.barrier->wait(worker);
  }

 private:
  PagesAhead* const pages_;
};

void Executor::clear_pages_ahead(int64_t blocks) {
  if (kv_parts_.empty()) return;
  std::vector<std::span<std::byte>> parts;
  for (const Memory& part : kv_parts_) parts.emplace_back(part.data(), part.bytes());
  pages_ahead_ = std::make_unique<PagesAhead>(std::move(parts), kv_part_bytes_, blocks);
}

void Executor::run(const StepView& step, const CacheEdits& edits, const int32_t* adapters) {
  prepare(step, edits, adapters);
  const Writing writing(pages_ahead_.get(), step);
  pool_.run([&](Worker& worker) {
    writing.clear_pages(worker);
    if (!edits.empty()) {
      edit_cache(edits, worker);
      worker.barrier->wait(worker);
    }
    for (const Op& op : ops_) {
      std::visit(Runner{step, worker, shared_.data(), ranks_.get(), adapted_}, op);
      worker.barrier->wait(worker);
    }
  });
  require_ranks();
}

void Executor::require_ranks() const {
  if (ranks_ && ranks_->given_up())
    throw std::runtime_error("rank " + std::to_string(ranks_->rank()) +
                             " waits for ranks that have failed");
}

std::vector<OpTime> Executor::profile(const StepView& step, const CacheEdits& edits,
                                      const int32_t* adapters) {
  prepare(step, edits, adapters);
  const Writing writing(pages_ahead_.get(), step);
  const size_t ops = ops_.size(), threads = size_t(pool_.threads());
  std::vector<Clock::time_point> done(threads * ops), over(ops + 1);
  std::vector<Clock::duration> waited(ops + 1);  // for ranks, until each op
  pool_.run([&](Worker& worker) {
    writing.clear_pages(worker);
    if (!edits.empty()) edit_cache(edits, worker);
    worker.barrier->wait(worker);
    if (worker.id == 0 && ranks_) waited[0] = ranks_->waited();
    if (worker.id == 0) over[0] = Clock::now();
    Clock::time_point* const own = &done[size_t(worker.id) * ops];
    for (size_t i = 0; i < ops; ++i) {
      std::visit(Runner{step, worker, shared_.data(), ranks_.get(), adapted_}, ops_[i]);
      own[i] = Clock::now();
      worker.barrier->wait(worker);
      if (worker.id == 0 && ranks_) waited[i + 1] = ranks_->waited();
      if (worker.id == 0) over[i + 1] = Clock::now();
    }
  });
  require_ranks();
  std::vector<OpTime> times(ops);
  for (size_t i = 0; i < ops; ++i) {
    times[i].seconds = seconds_of(over[i + 1] - over[i]);
    times[i].for_ranks = seconds_of(waited[i + 1] - waited[i]);
    for (size_t t = 0; t < threads; ++t) {
      // One that was first through the barrier before may have begun, and ended, before over[i].
      const auto since = std::max(done[t * ops + i], over[i]);
      times[i].waiting += seconds_of(over[i + 1] - since) / double(threads);
    }
  }
  return times;
}

std::vector<std::string> Executor::op_names() const {
  std::vector<std::string> names;
  for (const Op& op : ops_)
    names.push_back(std::visit([](const auto& bound) { return bound.name(); }, op));
  return names;
}

}  // namespace penstock
