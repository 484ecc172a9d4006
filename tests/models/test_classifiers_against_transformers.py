"""Models that classify give transformers' logits, of every family that transformers has such of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle, tiny_checkpoint
from support.families import FAMILIES
from support.needs import require_native

from penstock import LLM

torch = pytest.importorskip("torch", reason="transformers needs torch")
transformers = pytest.importorskip("transformers", reason="the oracle")

PROMPTS = [[int(t) for t in np.random.default_rng(n).integers(1, 250, n)] for n in (1, 7, 40, 75)]
NAMES = {0: "calm", 1: "glad", 2: "sad"}


def classifier(family: str) -> str:
    """The name of transformers' class; empty where it has none."""
    tiny = FAMILIES[family]
    stem = tiny.model.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    names = (f"{stem}{text}ForSequenceClassification" for text in ("Text", ""))
    return next((name for name in names if hasattr(transformers, name)), "")


CLASSIFYING = [family for family in FAMILIES if classifier(family)]


def made(family: str, **changes: Any) -> Path:
    case = next(iter(FAMILIES[family].cases.values()))
    return tiny_checkpoint(family, model=classifier(family), **{**case, **changes})


def logits(folder: Path) -> list[list[float]]:
    oracle = load_oracle(folder)
    with torch.no_grad():
        return [oracle(torch.tensor([prompt])).logits[0].tolist() for prompt in PROMPTS]


def classified(llm: LLM, activated: bool = False) -> list[list[float]]:
    outputs = llm.classify([{"prompt_token_ids": p} for p in PROMPTS], use_activation=activated)
    assert all(output.error is None for output in outputs)
    return [output.outputs.probs for output in outputs]


@pytest.mark.thinned(12)
@pytest.mark.parametrize("family", CLASSIFYING)
def test_logits_are_those_of_transformers(family: str) -> None:
    folder = made(family, id2label=NAMES)
    expected = logits(folder)
    for backend in FAMILIES[family].backends:
        if backend == "cpu":
            require_native()
        with LLM(str(folder), backend=backend, threads=1, max_num_batched_tokens=32) as llm:
            np.testing.assert_allclose(classified(llm), expected, rtol=1e-4, atol=1e-3)


def test_that_there_are_many() -> None:
    assert len(CLASSIFYING) >= 25, CLASSIFYING
