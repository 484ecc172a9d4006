"""Drafts of requests whose output is constrained: the same text, in fewer steps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock import LLM, GrammarSpec, SamplingParams

LINE = r"(value = compute\(value, [0-9]\)\n)"
SCHEMA = (
    '{"type": "array", "items": {"type": "object", "properties": {"name": {"enum": ["a", "b"]},'
    ' "size": {"type": "integer"}}, "required": ["name", "size"], "additionalProperties": false},'
    ' "minItems": 3, "maxItems": 5}'
)
PROMPTS = ["value = 1\n", "items = ", "def f(x):\n", "sizes: "]


def params() -> list[SamplingParams]:
    lines = GrammarSpec(kind="regex", text=LINE + "{6,9}")
    items = GrammarSpec(kind="json_schema", text=SCHEMA)
    return [
        SamplingParams(temperature=0, max_tokens=150, grammar=lines, logprobs=1),
        SamplingParams(temperature=0.8, seed=5, max_tokens=120, grammar=items, n=2),
        SamplingParams(temperature=0, max_tokens=40),
        SamplingParams(temperature=0.9, seed=2, max_tokens=30, grammar=lines, min_tokens=5),
    ]


def run(**options: Any) -> tuple[list[Any], Any]:
    with LLM(max_model_len=256, threads=1, **options) as llm:
        outputs = [o.outputs for o in llm.generate(PROMPTS, params())]
        stats = llm.stats()
    seen = [(c.text, list(c.token_ids), c.finish_reason, c.logprobs) for cs in outputs for c in cs]
    return seen, stats


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["ngram:min_match=2,adaptive=false", "draft:adaptive=false"])
def test_the_same_text_with_drafts(method: str) -> None:
    expected, _ = run()
    seen, stats = run(speculative=method)
    assert seen == expected
    assert stats.drafts.accepted_tokens > 0
    text, _, reason, _ = seen[0]
    assert reason == "length" or re.fullmatch(LINE + "{6,9}", text)
