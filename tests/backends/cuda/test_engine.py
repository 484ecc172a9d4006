"""The whole engine on the cuda backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.needs import needs_shared, shared

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

import penstock
from penstock import LLM, GrammarSpec, SamplingParams
from penstock.backends.cuda.executor import CudaExecutor
from penstock.interface.executor import Capabilities

DRAFT = Path(penstock.__file__).parent / "demo" / "draft"
STORIES = "models/stories260k"
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
}
PROMPTS = ["def quicksort(items):", "import os"]


def texts(options: dict[str, Any], prompts: list[str], tokens: int) -> list[list[int]]:
    with LLM(str(DRAFT), **SMALL, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]


def test_it_says_what_the_reference_says() -> None:
    expected = texts({"backend": "reference"}, PROMPTS, 3)
    assert texts({"backend": "cuda"}, PROMPTS, 3) == expected


@pytest.mark.slow
def test_sampled_tokens_do_not_depend_on_the_batch() -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=2, ignore_eos=True, logprobs=2)
    with LLM(str(DRAFT), backend="cuda", quantization="int4", **SMALL) as llm:
        together = llm.generate(PROMPTS, params)
        alone = [llm.generate([prompt], params)[0] for prompt in PROMPTS]
        assert llm.config.backend == "cuda"
        assert not llm.config.quantize_activations
    for one, other in zip(together, alone, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].logprobs == other.outputs[0].logprobs


@pytest.mark.slow
@needs_shared(STORIES)
def test_the_story_begins_as_published() -> None:
    lines = (shared(STORIES) / "SOURCE.md").read_text(encoding="utf-8").splitlines()
    published = "\n".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
    prompt = "Once upon a time"
    model = str(shared(STORIES))
    with LLM(model, backend="cuda", max_num_seqs=1, max_num_batched_tokens=16) as llm:
        (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=10))
    text = prompt + output.outputs[0].text
    assert len(text) > 40
    assert published.startswith(text)


@pytest.mark.slow
def test_working_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that the host never saw before the next step was launched, penalties on them too."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1),
        SamplingParams(temperature=1.5, seed=1, max_tokens=3, top_p=0.9, frequency_penalty=1.5),
        SamplingParams(temperature=1.0, seed=2, max_tokens=3, repetition_penalty=1.7, logprobs=2),
    ]
    prompts = [*PROMPTS, "class Stack:"]

    def outputs() -> list[Any]:
        with LLM(str(DRAFT), backend="cuda", **SMALL) as llm:
            return list(llm.generate(prompts, params))

    ahead = outputs()
    monkeypatch.setattr(CudaExecutor, "capabilities", Capabilities())
    in_turn = outputs()
    for one, other in zip(ahead, in_turn, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].logprobs == other.outputs[0].logprobs
        assert one.prompt_logprobs == other.prompt_logprobs


@pytest.mark.slow
def test_grammars() -> None:
    """Greedy and sampled, beside a request without one, with steps submitted ahead."""
    params = [
        SamplingParams(temperature=0, grammar=GrammarSpec(kind="choice", text='["one", "two"]')),
        SamplingParams(seed=2, grammar=GrammarSpec(kind="regex", text="[ab]{2}")),
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True),
    ]
    prompts = [*PROMPTS, "x"]
    with LLM(str(DRAFT), backend="cuda", **SMALL) as llm:
        found = [output.outputs[0] for output in llm.generate(prompts, params)]
    with LLM(str(DRAFT), backend="reference", **SMALL) as llm:
        expected = [output.outputs[0] for output in llm.generate(prompts, params)]
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert found[0].text in ("one", "two")
    assert len(found[1].text) == 2
    assert set(found[1].text) <= set("ab")
