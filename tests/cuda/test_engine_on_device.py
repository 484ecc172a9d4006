"""The whole engine on a GPU: a published text, and tokens that no company changes."""

from __future__ import annotations

from typing import Any

import pytest
from support.needs import needs_shared, shared

STORIES = "models/stories260k"
PROMPT = "Once upon a time"


@needs_shared(STORIES)
def test_published_text() -> None:
    from penstock import LLM, SamplingParams

    lines = (shared(STORIES) / "SOURCE.md").read_text(encoding="utf-8").splitlines()
    published = "\n".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
    assert len(published) > 500
    with LLM(str(shared(STORIES)), backend="cuda", max_num_seqs=4) as llm:
        params = SamplingParams(temperature=0, max_tokens=256)
        outputs = llm.generate([PROMPT, "The cat", PROMPT, "A dog and"], params)
    for output in (outputs[0], outputs[2]):
        assert (PROMPT + output.outputs[0].text).startswith(published)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_tokens_do_not_depend_on_the_batch(quantization: Any) -> None:
    from penstock import LLM, SamplingParams

    prompts = [[3 + i, 5, 7 * i + 11] * (1 + 5 * i) for i in range(24)]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    with LLM(backend="cuda", quantization=quantization, max_num_batched_tokens=128) as llm:
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        together = [list(o.outputs[0].token_ids) for o in llm.generate(requests, params)]
        alone = [
            list(llm.generate([request], params)[0].outputs[0].token_ids) for request in requests
        ]
    assert together == alone


@pytest.mark.parametrize("method", ["ngram:min_match=1", "draft:num_tokens=3", "self:num_tokens=3"])
def test_drafts_change_nothing(method: str) -> None:
    from penstock import LLM, SamplingParams

    prompts = ["def fib(n):\n    ", "import os\n\n\nclass Path:\n    def", "for i in range("]
    params = [
        SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=48, repetition_penalty=1.2),
        SamplingParams(temperature=0, max_tokens=48, ignore_eos=True),
    ]

    def said(**options: Any) -> list[Any]:
        with LLM(backend="cuda", max_model_len=256, max_num_seqs=4, **options) as llm:
            outputs = [output.outputs[0] for output in llm.generate(prompts, params)]
            llm.check_integrity()
        if options:
            assert sum(output.num_accepted_tokens for output in outputs) > 5
        return [(list(o.token_ids), o.logprobs, o.finish_reason) for o in outputs]

    assert said(speculative=f"{method},adaptive=false") == said()
