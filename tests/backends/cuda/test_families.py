"""Families whose ops few others have, beside the reference backend: tiny checkpoints of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("transformers", reason="makes the checkpoints")

from support.checkpoints import VOCAB, tiny_checkpoint  # noqa: E402
from support.families import FAMILIES  # noqa: E402
from support.kv_tables import in_groups  # noqa: E402
from support.tiny_plans import Chunk, step_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.registry import backend as named  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.plan import ops  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402
from penstock.weights.model_folder import load_model_spec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

BLOCKS = 2
CUTS = [0, 24, 41, 42, 43]
"""Where a prompt is cut, and what is decoded."""
TOKENS = np.random.default_rng(5).integers(0, VOCAB, CUTS[-1]).astype(np.int32)

QUICK = (
    "gpt2",
    "mpt-clipped",
    "falcon-slopes",
    "cohere-qk-norm",
    "llama4-dense",
    "apertus",
    "ministral3",
    "minicpm3",
)
"""One of each op that no other family here has."""
SLOW = (
    "bloom",
    "falcon",
    "falcon-16-slopes",
    "opt",
    "cohere",
    "olmo",
    "stablelm-qk-norm",
    "hunyuan",
    "nemotron",
    "apertus-biases",
    "ministral3-window",
    "minicpm3-untied",
    "youtu-halves",
    "deepseek-v2-yarn",
    "deepseek-v3-halves",
    "deepseek-v2",
    "deepseek-v3",
    "llama4",
)
CASES = {name: (family, tiny) for family, tiny in FAMILIES.items() for name in tiny.cases}


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_logits_are_those_of_the_reference(name: str, device: Any) -> None:
    family, tiny = CASES[name]
    folder = tiny_checkpoint(family, **tiny.cases[name])
    spec = load_model_spec(folder)
    plan = fuse(lower(spec, "float32", 64))
    named("cuda").check_runnable(plan)
    weights = open_weights(folder, spec, plan.weights, dtype="float32")
    groups = len(plan.kv_groups)
    limits = Limits(groups * BLOCKS, max_tokens=24, max_logit_rows=24, max_sequences=1, threads=1)
    executor = bind(plan, weights, limits, device)
    reference = ReferenceExecutor(plan, weights, limits)
    for start, stop in pairwise(CUTS):
        chunk = Chunk(TOKENS, start, stop, [1, 0], rows=range(start, stop))
        step = in_groups(step_of([chunk]), groups, BLOCKS)
        expected, got = reference.run(step).logits, executor.run(step).logits
        scale = np.abs(expected).max(axis=1, keepdims=True)
        assert np.max(np.abs(got - expected) / scale) < 1e-4
    executor.close()


def test_the_quick_ones_have_every_rare_op() -> None:
    met: set[object] = set()
    for name in QUICK:
        family, tiny = CASES[name]
        plan = fuse(lower(load_model_spec(tiny_checkpoint(family, **tiny.cases[name]))))
        for op in plan.ops:
            met.add(type(op))
            if isinstance(op, ops.Attention):
                met |= {f for f in ("slope_factor", "chunk", "value_dim") if getattr(op, f)}
            if isinstance(op, ops.HeadNorm):
                met |= {f for f in ("centered", "each_head") if getattr(op, f)}
                met |= {"no weight"} if op.weight is None else set()
    assert met >= {
        ops.AddPositions,
        ops.Clamp,
        ops.ScaleByPosition,
        ops.Xielu,
        ops.HeadLinear,
        *("slope_factor", "chunk", "value_dim", "centered", "each_head", "no weight"),
    }
