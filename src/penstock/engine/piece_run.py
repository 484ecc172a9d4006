"""Runs a piece of a plan over texts, one after another."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.executor import Executor, Limits, run
from penstock.interface.step import StepInput
from penstock.interface.step_builder import build_step, state_tables
from penstock.interface.weights import WeightSource
from penstock.plan.pieces import Piece
from penstock.plan.plan import Plan

F32 = NDArray[np.float32]
Returned = NDArray[Any]
"""What is in a buffer: float32, or int32 where it has indices."""
Bind = Callable[[Plan, WeightSource, Limits], Executor]
"""A backend's ``bind``."""


class PieceRun:
    """An executor of one piece, for texts of at most ``tokens`` tokens."""

    def __init__(
        self,
        bind: Bind,
        piece: Piece,
        weights: WeightSource,
        tokens: int,
        threads: int,
        cpus: tuple[int, ...] = (),
    ) -> None:
        """Raises what binding does, and WeightError."""
        self._piece = piece
        self._executor = bind(piece.plan, weights, _limits(piece.plan, tokens, threads, cpus))

    def __call__(self, tokens: Sequence[int], given: Mapping[str, F32]) -> dict[str, Returned]:
        """Run a text, whose values of the piece's ``given`` are float32 ``[tokens, columns]``.

        Returns its ``observed`` and ``made``, ``[rows, columns]``, as views that the next text
        overwrites.
        """
        leaving = run(self._executor, _step(self._piece, tokens, given)).leaving
        buffers = (*self._piece.observed, *self._piece.made)
        return {buffer.name: array for buffer, array in zip(buffers, leaving, strict=True)}

    def close(self) -> None:
        self._executor.close()

    def __enter__(self) -> PieceRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def _limits(plan: Plan, tokens: int, threads: int, cpus: tuple[int, ...]) -> Limits:
    return Limits(
        num_blocks=max(_blocks(tokens) * len(plan.kv_groups), 1),
        max_tokens=tokens,
        max_logit_rows=1,
        max_sequences=1,
        threads=threads,
        cpus=cpus,
        num_states=1 if plan.state_layers else 0,
    )


def _step(piece: Piece, tokens: Sequence[int], given: Mapping[str, F32]) -> StepInput:
    """All tokens, of one sequence, in one step."""
    blocks = _blocks(len(tokens))
    return build_step(
        [array("i", tokens)],
        [0],
        [
            [array("i", range(group * blocks, (group + 1) * blocks))]
            for group in range(len(piece.plan.kv_groups))
        ],
        num_logits=[0],
        num_hidden=[0],
        features=np.concatenate([given[buffer.name] for buffer in piece.given], axis=1),
        states=state_tables([0], [0], [0], (), ()) if piece.plan.state_layers else None,
    )
