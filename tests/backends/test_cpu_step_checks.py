"""A step whose arrays disagree is refused by cause, before anything reads what they point to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kv_tables import arrays_of, changed
from support.tiny_plans import Chunk, broken, dummy_weights, make_spec, step_of, tokens_of
from support.tree_steps import Branches, tree_step

from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

FAR = 2**31 - 1
TOKENS = tokens_of(1, 60)
LIMITS = Limits(num_blocks=8, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)

LINES = step_of([Chunk(TOKENS, 0, 3, [1]), Chunk(TOKENS, 33, 35, [2, 5])], [(1, 6)])
TREE = tree_step(
    [
        Branches(TOKENS, 30, 34, [2, 5], parents=(-1, 0, 0, 1)),
        Branches(TOKENS, 0, 2, [1], parents=(-1, 0)),
    ],
    moves=[(64, 65)],
)


@pytest.fixture(scope="module")
def executor() -> Iterator[CpuExecutor]:
    spec = make_spec()
    made = bind(fuse(lower(spec, "float32")), dummy_weights(spec, 3, "float32"), LIMITS)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("step", "changes", "message"),
    [
        # A tree is looked at only when all starts are known to lie within the rows.
        (TREE, {"query_starts": [0, 400, 6], "context_lens": [500, 500]}, "query_starts"),
        (TREE, {"query_starts": [0, FAR, 6]}, "query_starts"),
        (TREE, {"query_starts": [0, -4, 6]}, "query_starts"),
        (LINES, {"query_starts": [0, 5, 5]}, "query_starts"),
        (LINES, {"query_starts": [1, 3, 5]}, "query_starts"),
        (LINES, {"query_starts": [0, 3, FAR]}, "query_starts"),
        (LINES, {"query_starts": [-(2**31), 3, 5]}, "query_starts"),
        (LINES, {"block_starts": [0, 3, 2]}, "block_starts"),
        (LINES, {"block_starts": [0, -1, 3]}, "block_starts"),
        (LINES, {"block_starts": [0, FAR, 3]}, "block_starts"),
        (LINES, {"block_starts": [0, 1, FAR]}, "block_starts"),
        (LINES, {"block_starts": [0, 2, 3]}, "do not agree"),
        (LINES, {"context_lens": [3, FAR]}, "do not agree"),
        (LINES, {"context_lens": [3, -1]}, "do not agree"),
        (LINES, {"context_lens": [-(2**31), 35]}, "do not agree"),
        (LINES, {"context_lens": [3, 1]}, "do not agree"),
        (LINES, {"positions": [0, 1, 2, 33, 33]}, "row 1 of sequence 1 .* position 33, not 34"),
        (LINES, {"positions": [1, 1, 2, 33, 34]}, "row 0 of sequence 0 .* position 1, not 0"),
        (LINES, {"context_lens": [4, 35]}, "row 0 of sequence 0 .* position 0, not 1"),
        (LINES, {"slots": [32, 33, 34, 161, 163]}, "row 1 of sequence 1 .* slot 163, .* have 162"),
        (LINES, {"slots": [32, 33, 34, 161, -1]}, "slot -1"),
        (LINES, {"block_ids": [1, 2, 4]}, "slot 161, .* have 129"),
        (LINES, {"block_ids": [1, -1, 5]}, "block id -1"),
        (
            TREE,
            {"slots": [94, 95, 160, 160, 32, 33]},
            "row 3 of sequence 0 .* slot 160, .* have 161",
        ),
        (TREE, {"tree_parents": [-1, 0, 0, 3, -1, 0]}, "parent 3"),
        (TREE, {"tree_parents": [-1, 0, 0, -2, -1, 0]}, "parent -2"),
        (TREE, {"tree_parents": [-1, 0, 0, 1, -1]}, "5 tree_parents for 6 tokens"),
        (TREE, {"positions": [30, 31, 31, 33, 0, 1]}, "position 33"),
        (TREE, {"slot_moves": [[0, 256]]}, "moved slot 256"),
        (TREE, {"slot_moves": [[-1, 0]]}, "moved slot -1"),
        (LINES, {"block_copies": [[FAR, 0]]}, f"copied block {FAR}"),
        (LINES, {"logit_rows": [-1]}, "logit row -1"),
        (LINES, {"hidden_rows": [FAR]}, f"hidden row {FAR}"),
        (LINES, {"logit_rows": [0] * 60, "hidden_rows": [1] * 60}, "at most 96 rows .* not 120"),
        (LINES, {"query_starts": [], "context_lens": [], "block_starts": []}, "length"),
        (
            LINES,
            {"query_starts": [0], "context_lens": [], "block_starts": [0], "block_ids": []},
            "1 to 8 sequences, not 0",
        ),
    ],
)
def test_a_step_that_disagrees_with_itself(
    executor: CpuExecutor, step: StepInput, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        executor.run(broken(step, **changes))
    assert np.isfinite(executor.run(step).logits).all()


@pytest.mark.parametrize("name", ["token_ids", "slots", "query_starts", "block_ids"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.astype(np.int64),
        lambda a: a.astype(np.float32),
        lambda a: np.repeat(a, 2)[::2],
        lambda a: a.reshape(1, -1),
        lambda _: None,
    ],
)
def test_arrays_of_other_types_and_strides_are_not_taken(
    executor: CpuExecutor, name: str, spoil: Any
) -> None:
    step = changed(LINES, **{name: spoil(arrays_of(LINES)[name])})
    with pytest.raises(TypeError):
        executor.run(step)


NUMBERS = st.one_of(st.integers(-3, 40), st.sampled_from([-(2**31), FAR, FAR - 1, 255, 256, 2**26]))
FIELDS = (
    "token_ids",
    "positions",
    "slots",
    "query_starts",
    "context_lens",
    "block_starts",
    "block_ids",
    "logit_rows",
    "hidden_rows",
    "tree_parents",
)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_numbers_crash(executor: CpuExecutor, data: st.DataObject) -> None:
    """Spoilt in one place or two, a step runs or is refused."""
    step = data.draw(st.sampled_from([LINES, TREE]))
    changes = {}
    for name in data.draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=2)):
        array = arrays_of(step)[name].copy()
        if len(array):
            array[data.draw(st.integers(0, len(array) - 1))] = data.draw(NUMBERS)
        changes[name] = array
    try:
        result = executor.run(broken(step, **changes))
    except ValueError:
        return
    assert len(result.logits) == len(changes.get("logit_rows", step.logit_rows))
