"""The residual stream at the input of layers equals transformers' hidden states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.checkpoints import VOCAB, load_oracle, tiny_checkpoint
from support.needs import require_native
from support.tiny_plans import Chunk, step_of

from penstock.backends.registry import backend as named
from penstock.interface.executor import Limits
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

torch = pytest.importorskip("torch", reason="transformers needs torch")
pytest.importorskip("transformers", reason="the oracle")

LENGTH, CHUNK = 45, 20
TAPS = (2, 3, 0, 3)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_taps_are_the_hidden_states_of_transformers(backend: str) -> None:
    if backend == "cpu":
        require_native()
    folder = tiny_checkpoint("llama", num_hidden_layers=4)
    spec = load_model_spec(folder)
    tokens = np.random.default_rng(3).integers(1, VOCAB, LENGTH).astype(np.int32)
    with torch.no_grad():
        states = load_oracle(folder)(
            torch.from_numpy(tokens)[None].long(), output_hidden_states=True
        ).hidden_states
    expected = np.concatenate([states[layer][0].numpy() for layer in TAPS], axis=1)
    limits = Limits(4, max_tokens=CHUNK, max_logit_rows=CHUNK, max_sequences=1, threads=2)
    plan = fuse(lower(spec, "float32", 64, taps=TAPS))
    executor = named(backend).bind(
        plan,
        open_weights(folder, spec, plan.weights, dtype="float32"),
        limits,
    )
    rows = []
    for start in range(0, LENGTH, CHUNK):
        stop = min(start + CHUNK, LENGTH)
        whole = Chunk(tokens, start, stop, [2, 0], rows=[], hidden=range(start, stop))
        taps = executor.run(replace(step_of([whole]))).taps
        assert taps is not None
        rows.append(taps.copy())
    executor.close()
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert np.abs((np.concatenate(rows) - expected) / scale).max() < 1e-5
