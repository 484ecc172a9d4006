"""Embeddings equal those made of transformers' last hidden states."""

from __future__ import annotations

import numpy as np
import pytest
from support.checkpoints import LLAMA_SHAPED, VOCAB, load_oracle, tiny_checkpoint
from support.needs import require_native

from penstock import LLM, PoolingParams

torch = pytest.importorskip("torch", reason="transformers needs torch")
pytest.importorskip("transformers", reason="the oracle")

PROMPTS = [[int(t) for t in np.random.default_rng(n).integers(1, VOCAB, n)] for n in (1, 7, 40, 75)]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_embeddings_are_those_of_transformers(family: str, backend: str) -> None:
    folder = tiny_checkpoint(family)
    oracle = load_oracle(folder).model
    if backend == "cpu":
        require_native()
    llm = LLM(str(folder), backend=backend, threads=1, max_num_batched_tokens=32)
    with llm, torch.no_grad():
        rows = [oracle(torch.tensor([p])).last_hidden_state[0].double().numpy() for p in PROMPTS]
        for kind, pooled in (
            ("last", [each[-1] for each in rows]),
            ("mean", [each.mean(axis=0) for each in rows]),
            ("cls", [each[0] for each in rows]),
        ):
            for size in (None, 16):
                params = PoolingParams(pooling=kind, dimensions=size)
                outputs = llm.embed([{"prompt_token_ids": p} for p in PROMPTS], params)
                for output, vector in zip(outputs, pooled, strict=True):
                    kept = vector[:size]
                    expected = kept / np.linalg.norm(kept)
                    np.testing.assert_allclose(output.embedding, expected, rtol=0, atol=3e-5)
