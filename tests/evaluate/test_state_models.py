"""Perplexities of models whose layers keep states, against the engine's own log-probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import require_native

from penstock import LLM, SamplingParams
from penstock.config import EngineConfig
from penstock.evaluate.perplexity import perplexity
from penstock.evaluate.text_model import TextModel
from penstock.evaluate.windows import cut

pytest.importorskip("torch", reason="checkpoints are made with it")
pytest.importorskip("transformers", reason="checkpoints are made with it")

TEXT = "The quick brown fox, and what it jumps over. " * 12
WINDOW = 96


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text", "nemotron_h", "mamba2"])
def test_states_begin_anew_in_each_window(family: str, backend: str) -> None:
    """And go on from one step of a window to the next."""
    if backend == "cpu":
        require_native()
    options = {"model": str(tiny_checkpoint(family)), "backend": backend, "artifact": False}
    config = EngineConfig(**options, max_num_batched_tokens=40)  # type: ignore[arg-type]
    with TextModel.open(config, WINDOW) as model:
        tokens, bos = model.encode(TEXT)
        windows = cut(tokens, WINDOW, "llama.cpp", bos)[:3]
        result = perplexity(model, windows)
    with LLM(**options) as llm:  # type: ignore[arg-type]
        outputs = llm.generate(
            [{"prompt_token_ids": list(w.token_ids)} for w in windows],
            SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0),
        )
    losses = []
    for window, output in zip(windows, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for place in range(window.first, len(window.token_ids)):
            entry = output.prompt_logprobs[place]
            assert entry is not None
            losses.append(-entry[window.token_ids[place]].logprob)
    assert result.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
