"""The whole engine on a GPU: a published text, and tokens that no company changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

STORIES = Path(__file__).parents[2] / "shared" / "models" / "stories260k"
PROMPT = "Once upon a time"


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"{STORIES.name} is not there")
def test_published_text() -> None:
    from penstock import LLM, SamplingParams

    lines = (STORIES / "SOURCE.md").read_text(encoding="utf-8").splitlines()
    published = "\n".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
    assert len(published) > 500
    with LLM(str(STORIES), backend="cuda", max_num_seqs=4) as llm:
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
