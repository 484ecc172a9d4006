"""Steps cross to other ranks as they are."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from support.state_steps import with_states
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.engine.ranks.steps import StepFrame, decoded, encoded
from penstock.interface.step import StepInput

TOKENS = tokens_of(1, 60)
STEP = step_of(
    [Chunk(TOKENS, 0, 40, [3, 5], rows=[3, 39], hidden=[7]), Chunk(TOKENS, 8, 9, [1])],
    copies=[(2, 4), (6, 8)],
)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    elif one is None:
        assert other is None
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        with_states(STEP),
        replace(
            STEP,
            groups=STEP.groups * 3,
            features=np.random.default_rng(1).random((41, 5), np.float32),
            slot_moves=np.array([[1, 2], [5, 9]], np.int32),
            tree_parents=np.arange(41, dtype=np.int32) - 1,
        ),
    ],
)
def test_a_step_is_the_same_behind_its_frame(step: StepInput) -> None:
    data = msgspec.msgpack.encode(encoded(step))
    assert_same(step, decoded(msgspec.msgpack.decode(data, type=StepFrame)))
