#include "step_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/draft_tree.h"
#include "refuse.h"

namespace penstock {
namespace {

// A sequence's rows as a tree, and the position of each by its depth there.
void check_tree(const StepView& s, int sequence) {
  const int first = s.query_starts[sequence], rows = s.query_starts[sequence + 1] - first;
  const int start = s.context_lens[sequence] - rows;
  const int32_t* parents = s.tree_parents + first;
  const auto row_name = [&](int r) {
    return "row " + std::to_string(r) + " of sequence " + std::to_string(sequence);
  };
  for (int r = 0; r < rows; ++r)
    if (parents[r] < -1 || parents[r] >= r)
      refuse(row_name(r) + " of the step has the parent " + std::to_string(parents[r]) +
             ": a parent is a row before it in its sequence, or -1");
  for (int r = 0; r < rows; ++r) {
    const int position = parents[r] < 0 ? start : s.positions[first + parents[r]] + 1;
    if (s.positions[first + r] != position)
      refuse(row_name(r) + " of the step has position " +
             std::to_string(s.positions[first + r]) + " where its parent has " +
             std::to_string(position - 1));
  }
  const int branching = rows - trunk_rows(parents, rows);
  if (branching > kMostTreeRows)
    refuse("sequence " + std::to_string(sequence) + " of the step has " +
           std::to_string(branching) + " rows that branch; a draft tree has at most " +
           std::to_string(kMostTreeRows));
}

// `values` lie in [0, bound).
void check_within(const int32_t* values, int64_t count, int64_t bound, const char* what) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= bound)
      refuse(std::string(what) + " " + std::to_string(values[i]) + " is not in [0, " +
             std::to_string(bound) + ")");
}

// Where sequences start among rows or blocks: ascending, so each pair lies between 0 and `end`.
void check_starts(const int32_t* starts, int sequences, int64_t end, int least, const char* name,
                  const char* what) {
  if (starts[0] != 0 || starts[sequences] != end)
    refuse(std::string(name) + " of a step ascend from 0 to its " + std::to_string(end) + " " +
           what + ", not from " + std::to_string(starts[0]) + " to " +
           std::to_string(starts[sequences]));
  for (int i = 0; i < sequences; ++i)
    if (int64_t(starts[i + 1]) - starts[i] < least)
      refuse(std::string(name) + " of a step ascend, but sequence " + std::to_string(i) +
             " runs from " + std::to_string(starts[i]) + " to " + std::to_string(starts[i + 1]));
}

// Rows of a sequence that does not branch are its last tokens, in order.
void check_line(const StepView& s, int sequence) {
  const int first = s.query_starts[sequence], end = s.query_starts[sequence + 1];
  const int ahead = s.context_lens[sequence] - end;
  for (int r = first; r < end; ++r)
    if (s.positions[r] != ahead + r)
      refuse("row " + std::to_string(r - first) + " of sequence " + std::to_string(sequence) +
             " of the step has position " + std::to_string(s.positions[r]) + ", not " +
             std::to_string(ahead + r));
}

// Rows lie in the cache where the sequence's blocks have its last tokens, those of a tree too.
void check_slots(const StepView& s, const KvTables& tables, int sequence) {
  const int first = s.query_starts[sequence], end = s.query_starts[sequence + 1];
  const int ahead = s.context_lens[sequence] - end;
  const int32_t* blocks = tables.block_ids + tables.block_starts[sequence];
  for (int r = first; r < end; ++r) {
    const int place = ahead + r;
    const int slot = blocks[place / kBlockSize] * kBlockSize + place % kBlockSize;
    if (tables.slots[r] != slot)
      refuse("row " + std::to_string(r - first) + " of sequence " + std::to_string(sequence) +
             " of the step has slot " + std::to_string(tables.slots[r]) +
             ", where its blocks have " + std::to_string(slot));
  }
}

// No slot is written for two, and states are of tokens that sequences have.
void check_states(const StepView& s, const CacheEdits& edits, const StepReads& reads) {
  const int slots = reads.state_slots;
  if ((s.states.slots != nullptr) != (slots > 0))
    refuse(slots ? "the step says of no sequence where its state is, and the model keeps states"
                 : "the step has states, and the model keeps none");
  check_within(edits.state_copies.data(), int64_t(edits.state_copies.size()), slots,
               "copied state slot");
  if (slots == 0) return;
  if (s.tree_parents) refuse("draft trees cannot be verified by a model that keeps states");
  check_within(s.states.slots, s.sequences, slots, "state slot");
  std::vector<int32_t> written(s.states.slots, s.states.slots + s.sequences);
  for (int i = 0; i < s.sequences; ++i) {
    const int64_t end = s.context_lens[i];
    const int64_t first = end - (s.query_starts[i + 1] - s.query_starts[i]);
    const int64_t seen = s.states.seen[i], tentative = s.states.tentative[i];
    if (seen < 0 || seen > first || first - seen > reads.state_log)
      refuse("sequence " + std::to_string(i) + " of the step has " + std::to_string(seen) +
             " tokens in its state and begins at position " + std::to_string(first) +
             "; the log has the tokens between, at most " + std::to_string(reads.state_log));
    if (tentative < 0 || tentative > reads.state_log || tentative > end - first)
      refuse("sequence " + std::to_string(i) + " of the step has " + std::to_string(tentative) +
             " rows that may be taken back, of " + std::to_string(end - first) +
             " and with a log of " + std::to_string(reads.state_log));
  }
  int sequence = 0;
  int64_t tokens = 0;
  for (const Snapshot& one : s.states.snapshots) {
    if (one.sequence < sequence || one.sequence >= s.sequences)
      refuse("snapshots of a step ascend by its sequences");
    if (one.sequence > sequence) tokens = 0;
    sequence = one.sequence;
    const int64_t seen = s.states.seen[sequence];
    const int64_t stored = int64_t(s.context_lens[sequence]) - s.states.tentative[sequence];
    if (one.tokens <= std::max(tokens, seen) || one.tokens > stored)
      refuse("a snapshot of " + std::to_string(one.tokens) + " tokens of sequence " +
             std::to_string(sequence) + " of the step is not behind the one before it, or not in (" +
             std::to_string(seen) + ", " + std::to_string(stored) + "]");
    tokens = one.tokens;
    check_within(&one.slot, 1, slots, "state slot");
    written.push_back(one.slot);
  }
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice != written.end())
    refuse("state slot " + std::to_string(*twice) + " is written for two in one step");
}

}  // namespace

// Each check reads only what those before it have found to lie within the arrays.
void check_adapters(int sequences, const int32_t* adapters, int64_t slots) {
  if (!adapters) return;
  if (slots == 0) refuse("the step has adapters, and the model has room for none");
  for (int i = 0; i < sequences; ++i)
    if (adapters[i] < -1 || adapters[i] >= slots)
      refuse("sequence " + std::to_string(i) + " of the step has adapter slot " +
             std::to_string(adapters[i]) + " of " + std::to_string(slots));
}

void check_step(const StepView& s, const CacheEdits& edits, const ExecutorShape& shape,
                const StepReads& reads) {
  const int64_t slots = int64_t(shape.num_blocks) * kBlockSize;
  const int64_t selected = int64_t(s.logits) + s.hidden;
  if (s.tokens < 1 || s.tokens > shape.max_tokens)
    refuse("a step has 1 to " + std::to_string(shape.max_tokens) + " tokens, not " +
           std::to_string(s.tokens));
  if (s.sequences < 1 || s.sequences > shape.max_sequences)
    refuse("a step has 1 to " + std::to_string(shape.max_sequences) + " sequences, not " +
           std::to_string(s.sequences));
  if (s.logits < 0 || s.hidden < 0 || selected > shape.max_logits)
    refuse("a step has at most " + std::to_string(shape.max_logits) +
           " rows of logits and hidden states, not " + std::to_string(selected));
  check_within(s.token_ids, s.tokens, shape.vocabulary, "token id");
  check_within(s.positions, s.tokens, shape.max_positions, "position");
  if (s.feature_cols != reads.feature_cols)
    refuse("a step has features of " + std::to_string(s.feature_cols) + " columns where " +
           std::to_string(reads.feature_cols) + " are read");
  check_within(s.logit_rows, s.logits, s.tokens, "logit row");
  check_within(s.hidden_rows, s.hidden, s.tokens, "hidden row");
  check_within(edits.block_copies.data(), int64_t(edits.block_copies.size()), shape.num_blocks,
               "copied block");
  check_within(edits.slot_moves.data(), int64_t(edits.slot_moves.size()), slots, "moved slot");
  check_starts(s.query_starts, s.sequences, s.tokens, 1, "query_starts", "tokens");
  if (int64_t(s.groups.size()) != reads.groups)
    refuse("a step has tables of " + std::to_string(s.groups.size()) +
           " groups of layers where " + std::to_string(reads.groups) + " are cached");
  if (!edits.slot_moves.empty() && !reads.moves)
    refuse("slots cannot be moved in a cache whose heads differ in size: draft no trees");
  for (const KvTables& tables : s.groups) {
    check_starts(tables.block_starts, s.sequences, tables.blocks, 0, "block_starts", "block_ids");
    check_within(tables.slots, s.tokens, slots, "slot");
    check_within(tables.block_ids, tables.blocks, shape.num_blocks, "block id");
  }
  for (int i = 0; i < s.sequences; ++i) {
    const int64_t queries = int64_t(s.query_starts[i + 1]) - s.query_starts[i];
    const int64_t context = s.context_lens[i];
    if (context < queries || context > shape.max_positions)
      refuse("sequence " + std::to_string(i) + " of the step has " + std::to_string(queries) +
             " tokens and a context of " + std::to_string(context) + ", which do not agree");
    for (const KvTables& tables : s.groups) {
      const int64_t blocks = int64_t(tables.block_starts[i + 1]) - tables.block_starts[i];
      if (context > blocks * kBlockSize)
        refuse("sequence " + std::to_string(i) + " of the step has a context of " +
               std::to_string(context) + " and " + std::to_string(blocks) +
               " blocks, which do not agree");
    }
    if (s.tree_parents) {
      check_tree(s, i);
      const int rows = s.query_starts[i + 1] - s.query_starts[i];
      if (!reads.branches && trunk_rows(s.tree_parents + s.query_starts[i], rows) < rows)
        refuse("convolutions run no draft trees, and sequence " + std::to_string(i) +
               " of the step branches");
    } else {
      check_line(s, i);
    }
    for (const KvTables& tables : s.groups) check_slots(s, tables, i);
  }
  check_states(s, edits, reads);
}

}  // namespace penstock
