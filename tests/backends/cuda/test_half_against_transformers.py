"""A float16 checkpoint beside transformers in float16: no farther from exact logits than those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("transformers", reason="the oracle")

from support.checkpoints import VOCAB, load_oracle, tiny_checkpoint  # noqa: E402
from support.tiny_plans import Chunk, step_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402
from penstock.weights.model_folder import load_model_spec  # noqa: E402

LIMITS = Limits(num_blocks=4, max_tokens=40, max_logit_rows=40, max_sequences=1, threads=1)


@torch.inference_mode()
def test_logits_are_as_near_to_exact_ones_as_those_of_transformers(device: Any) -> None:
    folder = tiny_checkpoint("llama")
    tokens = np.random.default_rng(0).integers(1, VOCAB, 40).astype(np.int32)
    oracle = load_oracle(folder).half()
    ids = torch.from_numpy(tokens[None].astype(np.int64))
    theirs = oracle(ids).logits[0].float().numpy()
    exact = oracle.double()(ids).logits[0].numpy()  # of the same rounded weights

    spec = load_model_spec(folder)
    plan = fuse(lower(spec, "float16", half=True))
    weights = open_weights(folder, spec, plan.weights, dtype="float16")
    executor = bind(plan, weights, LIMITS, device)
    ours = executor.run(step_of([Chunk(tokens, 0, 40, [2, 1], rows=range(40))])).logits
    executor.close()
    scale = np.abs(exact).max()
    assert np.abs(ours - exact).max() / scale < 5e-3
    assert np.abs(ours - exact).mean() <= np.abs(theirs - exact).mean() * 1.05
