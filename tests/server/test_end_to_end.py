"""The command, the real engine and a real checkpoint, asked with OpenAI's client."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from support.needs import needs_shared, shared
from support.served import Served, serving
from support.waiting import PATIENCE_S

from penstock import LLM, PoolingParams

STORIES = "models/stories260k"
MODEL = shared(STORIES)
STORY = (
    ", there was a little girl named Lily. She loved to play outside in the park. One day, she "
    "saw a big, red ball. She wanted to play with it, but it was too high."
)
"""What llama2.c's documentation shows for this model at temperature 0."""

pytestmark = needs_shared(STORIES)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(str(MODEL), "--served-model-name", "stories", "--backend", "reference") as served:
        yield served


def test_the_start_is_accounted_for(served: Served) -> None:
    assert served.lines[2] == "  tool calls: none, reasoning: none\n"
    match = re.fullmatch(r"ready in ([0-9.]+) s: (.*)\n", served.lines[-1])
    assert match is not None
    phases = dict(part.rsplit(" ", 1) for part in match[2].split(", "))
    assert next(iter(phases)) == "python"
    assert {"engine imports", "config", "pack weights", "first token", "server"} < set(phases)
    assert sum(map(float, phases.values())) == pytest.approx(float(match[1]), abs=0.1)
    assert float(match[1]) < 100


def test_the_example_works_as_pasted(served: Served) -> None:
    printed = "".join(served.lines)
    example = printed[printed.index("  curl ") : printed.index("\n\n  page")]
    command = ["bash", "-c", example.replace("curl ", "curl --silent --show-error ", 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    assert json.loads(done.stdout)["choices"][0]["text"].startswith(STORY)


def test_the_published_story_alone_and_among_others(served: Served) -> None:
    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model="stories", prompt=prompt, temperature=0, max_tokens=70, stream=True
        )
        return "".join([part.choices[0].text async for part in stream])

    async def main() -> None:
        url = served.url
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            alone = await one(client, "Once upon a time")
            assert alone.startswith(STORY)
            prompts = ["Once upon a time", "The dog", "One day, Tim", "Lily and Ben", "A"]
            texts = await asyncio.gather(*(one(client, prompt) for prompt in prompts))
            assert texts[0] == alone
            assert len(set(texts)) == len(texts)

    asyncio.run(main())


def test_logprobs_name_the_tokens(served: Served) -> None:
    answer = served.client().completions.create(
        model="stories", prompt="Once upon a time", temperature=0, max_tokens=40, logprobs=3
    )
    (choice,) = answer.choices
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert "".join(choice.logprobs.tokens) == choice.text == STORY[: len(choice.text)]
    for chosen, top in zip(
        choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert max(top.values()) == chosen  # greedy


def test_a_repeated_prompt_is_found_in_the_cache(served: Served) -> None:
    prompt = "Tom had a red ball and a blue ball. " * 12
    cached = []
    for _ in range(2):
        answer = served.client().completions.create(
            model="stories", prompt=prompt, temperature=0, max_tokens=8
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, (answer.usage.prompt_tokens - 1) // 32 * 32]


def test_without_a_chat_template_a_chat_is_refused(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match=r"no chat template.*--chat-template FILE"):
        served.client().chat.completions.create(
            model="stories", messages=[{"role": "user", "content": "Hi"}]
        )


@pytest.mark.slow
def test_a_chat_template_of_the_server(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    words = ("--served-model-name", "stories", "--backend", "reference")
    with serving(str(MODEL), *words, "--chat-template", str(template)) as other:
        answer = other.client().chat.completions.create(
            model="stories",
            messages=[{"role": "user", "content": "Once upon a time"}],
            temperature=0,
            max_tokens=20,
        )
    text = answer.choices[0].message.content
    assert text
    assert STORY.startswith(text)


def test_embeddings_are_those_of_the_model_in_process(served: Served) -> None:
    texts = ["Once upon a time", "Lily saw a red ball.", "Once upon a time"]
    answer = served.client().embeddings.create(
        model="stories", input=texts, dimensions=32, extra_body={"pooling": "mean"}
    )
    with LLM(str(MODEL), backend="reference") as llm:
        outputs = llm.embed(texts, PoolingParams(pooling="mean", dimensions=32))
    for reported, output in zip(answer.data, outputs, strict=True):
        np.testing.assert_allclose(reported.embedding, output.embedding, rtol=0, atol=1e-5)
    first, other, again = (output.embedding for output in outputs)
    assert float(first @ again) == pytest.approx(1)
    assert float(first @ other) < 0.99
    assert answer.usage.prompt_tokens == sum(len(each.prompt_token_ids) for each in outputs)
