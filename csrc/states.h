// State that is not keys and values: what a layer keeps of a sequence in one piece, whatever its
// length.
//
// A sequence has a *slot*, which holds its state of all such layers: for each, *tiles* of a
// recurrence, a *ring* of the latest inputs of a convolution, and a *log* of the latest tokens, with
// which the recurrence catches up (plan/ops/state.py says when).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "types.h"

namespace penstock {

// Columns of a state that are walked together: those of a register, and the same on every machine.
constexpr int kTileColumns = 16;
// Rows of a tile: what a thread keeps of a key or query is on its stack.
constexpr int kMostTileRows = 1024;

constexpr int tiles_of(int columns) { return (columns + kTileColumns - 1) / kTileColumns; }

// A layer's part of a slot; places are in bytes from the slot's first.
struct StateGeometry {
  size_t tiles;
  int heads;
  int rows;     // of a head's state: sums go over them
  int columns;  // of a head's state: no two of them meet
  size_t ring;
  int ring_rows;
  int64_t ring_columns;
  size_t log;
  int64_t log_columns;
};

struct StateSlots {
  int slots = 0;
  int log = 0;  // rows of every log
  size_t slot_bytes = 0;
  Elem ring_elem = Elem::f32;
  std::vector<StateGeometry> layers;
};

// A layer's state in memory. The state of a head is cut into tiles of kTileColumns columns, each
// [rows][kTileColumns] float32, the last filled up with zeros. Rings and logs have the row of the
// token at position p in the place p % rows.
struct StateLayer {
  std::byte* base;  // of slot 0
  size_t stride;    // bytes from slot to slot
  StateGeometry at;
  Elem ring_elem;
  int log_rows;

  size_t tile_bytes() const { return size_t(at.rows) * kTileColumns * sizeof(float); }
  // Tile `unit` of a slot: those of the first head come first.
  float* tile(int64_t slot, int64_t unit) const {
    return reinterpret_cast<float*>(part(slot, at.tiles) + size_t(unit) * tile_bytes());
  }
  template <class T>
  T* ring_row(int64_t slot, int64_t position) const {
    return reinterpret_cast<T*>(part(slot, at.ring)) + position % at.ring_rows * at.ring_columns;
  }
  float* log_row(int64_t slot, int64_t position) const {
    return reinterpret_cast<float*>(part(slot, at.log)) + position % log_rows * at.log_columns;
  }

 private:
  std::byte* part(int64_t slot, size_t place) const { return base + size_t(slot) * stride + place; }
};

// What a step does with the state of one sequence: the tokens at positions seen .. start - 1 come from
// the log, those from start on are the step's rows; `stored` are in the state that stays.
struct StateSpan {
  int64_t seen, start, stored, end;
  int64_t slot;
  int row;  // of the token at `start`

  StateSpan(const StepView& step, int sequence)
      : seen(step.states.seen[sequence]),
        start(step.context_lens[sequence] -
              (step.query_starts[sequence + 1] - step.query_starts[sequence])),
        stored(step.context_lens[sequence] - step.states.tentative[sequence]),
        end(step.context_lens[sequence]),
        slot(step.states.slots[sequence]),
        row(step.query_starts[sequence]) {}
};

// The snapshots of one sequence.
std::span<const Snapshot> snapshots_of(const StepView& step, int sequence);

}  // namespace penstock
