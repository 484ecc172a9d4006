"""Draft trees through a whole plan: bits of plain decoding, before and after a path is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.latents import over_latents  # noqa: E402
from support.tiny_plans import Chunk, dummy_weights, make_spec, tokens_of  # noqa: E402
from support.tree_steps import Accepted, tree_step  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Buckets  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.cache.geometry import KvDType  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402

# The interpreter is NumPy: it says so where infinities meet, as they do in rows that are not used.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

LIMITS = Limits(num_blocks=40, max_tokens=48, max_logit_rows=48, max_sequences=4, threads=1)
BLOCKS = [7, 3, 20]
PARENTS = [-1, 0, 0, 1, 2, 4]


SPECS = {"plain": make_spec(qk_norm=True), "latents": over_latents(make_spec())}


def make_executor(kv_dtype: KvDType, device: Any, name: str = "plain") -> CudaExecutor:
    spec = SPECS[name]
    plan = fuse(lower(spec, "float32", kv_dtype=kv_dtype))
    return bind(plan, dummy_weights(spec, 3, "float32"), LIMITS, device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv_dtype", "name"),
    [("float32", "plain"), ("int8", "plain"), ("int8", "latents"), ("int4", "plain")],
)
def test_trees_are_bitwise_plain_decoding(kv_dtype: KvDType, name: str, device: Any) -> None:
    trees, plain = (make_executor(kv_dtype, device, name) for _ in range(2))
    known = Accepted(tokens_of(5, 29), BLOCKS)
    for executor in (trees, plain):
        executor.run(tree_step([Chunk(known.tokens, 0, 29, BLOCKS)]))
    tree = known.branches(tokens_of(8, len(PARENTS)), PARENTS)
    rows = trees.run(tree_step([tree, Chunk(tokens_of(2, 9), 0, 9, [2])])).logits
    path = known.accept(tree, 5)
    for depth, row in enumerate(path):
        step = tree_step([Chunk(known.tokens, 29 + depth, 30 + depth, BLOCKS)])
        assert plain.run(step).logits.tobytes() == rows[row].tobytes()
    tokens = np.append(known.tokens, np.int32(17))
    last = [Chunk(tokens, len(tokens) - 1, len(tokens), BLOCKS)]
    step = tree_step(last, moves=known.moves)
    assert Buckets((1, 2), ()).holding(step) is None  # captured steps move nothing
    assert trees.run(step).logits.tobytes() == plain.run(tree_step(last)).logits.tobytes()
    trees.close()
    plain.close()


def test_what_is_no_tree_is_refused(device: Any) -> None:
    executor = make_executor("float32", device)
    known = Accepted(tokens_of(5, 4), BLOCKS)
    executor.run(tree_step([Chunk(known.tokens, 0, 4, BLOCKS)]))
    step = tree_step([known.branches(tokens_of(8, len(PARENTS)), PARENTS)])
    for changes, message in (
        ({"tree_parents": [-1, 0, 2, 1, 2, 4]}, "row 2 of sequence 0 .* the parent 2"),
        ({"tree_parents": [-1, 0]}, "2 tree_parents for 6 tokens"),
        ({"positions": [4, 5, 5, 6, 6, 8]}, "row 5 of sequence 0 .* has position 8 where .* 6"),
        ({"slot_moves": [[0, 1280]]}, "moved slot 1280"),
        ({"slot_moves": [[0, 1]] * 49}, "at most 48 slots, not 49"),
    ):
        arrays = {name: np.array(values, np.int32) for name, values in changes.items()}
        with pytest.raises(ValueError, match=message):
            executor.run(replace(step, **arrays))
    assert executor.run(step).logits.shape == (6, 211)
    executor.close()
