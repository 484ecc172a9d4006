"""Requests by the lengths of their prompts and of their answers."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from penstock.workload.requests import Ints

_MOST: Final = 12
"""Classes of a length, at most: as many as a terminal shows side by side."""


class LengthTable(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests there are of each class of lengths.

    A class holds lengths from its bound to before the next one's; the last has no end. Bounds are
    powers of two, or of four where lengths are very different.
    """

    prompt_from: list[int]
    output_from: list[int]
    counts: list[list[int]]
    """``counts[i][j]``: prompts of class ``i`` with answers of class ``j``."""


def length_table(prompt: Ints, output: Ints) -> LengthTable | None:
    """The table of requests with these tokens; None where there are none."""
    if not len(prompt):
        return None
    prompt_from, output_from = _bounds(prompt), _bounds(output)
    rows = np.maximum(np.searchsorted(prompt_from, prompt, side="right") - 1, 0)
    columns = np.searchsorted(output_from, output, side="right") - 1
    shape = len(prompt_from), len(output_from)
    counts = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1])
    return LengthTable(
        prompt_from=prompt_from, output_from=output_from, counts=counts.reshape(shape).tolist()
    )


def _bounds(lengths: Ints) -> list[int]:
    low, high = (max(1, int(each)).bit_length() - 1 for each in (lengths.min(), lengths.max()))
    step = -(-(high - low + 1) // _MOST)
    return [1 << power for power in range(low, high + 1, step)]
