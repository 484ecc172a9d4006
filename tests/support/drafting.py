"""Drafts of the demo model, which has a draft model and heads of its own, beside processes that
share it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from support.bitwise import Requests, prompt
from support.head_checkpoints import EAGLE3, eagle3_arrays, write_heads
from support.needs import require_native

REQUESTS = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((3, 40))],
    SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.8, seed=7, max_tokens=30, ignore_eos=True, logprobs=2),
)


def start(**options: Any) -> LLM:
    if options.setdefault("backend", "cpu") == "cpu":
        require_native()
        options = {"threads": 2, "artifact": False} | options
    return LLM(max_num_seqs=4, **options)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def check(method: str, parallel: dict[str, Any], **options: Any) -> None:
    """Several processes that draft say what one without drafts says: greedily and drawn, and behind
    cached prefixes."""
    with start(**options) as one:
        expected = REQUESTS.together(one)
    with start(**parallel, speculative=method, **options) as several:
        assert REQUESTS.together(several) == expected
        drafts = several.stats().drafts
        assert drafts is not None
        assert drafts.accepted_tokens > 0
        assert REQUESTS.together(several) == expected
        several.check_integrity()


def eagle3(folder: Path) -> str:
    """An EAGLE 3 head, which reads taps of several layers, as an option."""
    head = write_heads(folder / "head", EAGLE3, eagle3_arrays())
    return f"eagle:width=3,depth=3,adaptive=false,model={head}"
