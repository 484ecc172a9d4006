"""Engines that serve adapters, beside engines of checkpoints that these are merged into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock import LLM, SamplingParams
from support.adapters import ATTENTION, merge, write_adapter
from support.bitwise import prompt
from support.checkpoints import VOCAB, tiny_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=0)
CLOSE = 1e-4
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "phi3": {"targets": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")},
    "gpt2": {"targets": ("c_attn", "c_proj", "c_fc"), "transposed": True},
    "mixtral": {"targets": ATTENTION},
}
"""What adapters of each change: matrices by themselves, with biases, joined in one tensor, stored
as their transposes, and beside experts."""


def said(llm: LLM, tokens: list[int], lora: str | None = None) -> tuple[object, list[float]]:
    """The tokens and the log-probabilities of a prompt and its answer."""
    (output,) = llm.generate([{"prompt_token_ids": tokens}], GREEDY, lora=lora)
    assert output.prompt_logprobs is not None
    answer = output.outputs[0]
    assert answer.logprobs is not None
    given = [entry for entry in (*output.prompt_logprobs, *answer.logprobs) if entry is not None]
    return answer.token_ids, [value.logprob for entry in given for value in entry.values()]


def check_as_if_merged(
    family: str,
    folder: Path,
    backend: str,
    merged_backend: str,
    length: int = 40,
    **options: Any,
) -> None:
    """An adapter of all its targets is, in float32, as near to the merged checkpoint as rounding
    leaves it, and what is beside it has the bits of an engine without room for adapters.

    ``length``: of the prompt; ``options``: of the engines on ``backend``.
    """
    base = tiny_checkpoint(family)
    adapter = write_adapter(folder / "a", base, seed=1, rank=5, lora_alpha=7, **FAMILIES[family])
    transposed = bool(FAMILIES[family].get("transposed"))
    merged = merge(folder / "merged", base, adapter, transposed=transposed)
    tokens = prompt(3, length, VOCAB)
    with LLM(str(merged), backend=merged_backend) as llm:
        expected = said(llm, tokens)
    with LLM(str(base), backend=backend, **options) as llm:
        plain = said(llm, tokens)
    with LLM(str(base), backend=backend, lora_modules={"a": adapter}, **options) as llm:
        adapted, beside = said(llm, tokens, "a"), said(llm, tokens)
    assert beside == plain
    assert adapted[0] == expected[0]
    assert np.abs(np.subtract(adapted[1], expected[1])).max() < CLOSE
    known = length - 1
    assert np.abs(np.subtract(plain[1][:known], expected[1][:known])).max() > 100 * CLOSE
