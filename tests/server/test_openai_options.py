"""The options of OpenAI's API on the demo model: what its client gets is what ``LLM`` computes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import openai
import pytest
from support.needs import needs_native

from penstock import LLM, SamplingParams
from penstock.frontend.outputs import RequestOutput

MODEL = "penstock-demo"
PROMPT = "def quicksort(items):"
MESSAGES: Any = [
    {"role": "system", "content": "Short functions."},
    {"role": "user", "content": "Sort a list of numbers."},
]


pytestmark = needs_native


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--max-model-len", "512", "--no-access-log"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    found = re.search(r"at (http://\S+)", process.stdout.readline())
    assert found is not None
    with openai.OpenAI(base_url=found[1], api_key="none", max_retries=0) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.fixture(scope="module")
def offline() -> Iterator[LLM]:
    with LLM(max_model_len=512, threads=2) as llm:
        yield llm


def computed(offline: LLM, prompt: str = PROMPT, **options: Any) -> RequestOutput:
    (output,) = offline.generate(prompt, SamplingParams(**options))
    return output


def test_the_demo_model_can_chat_and_was_made_to_complete(client: openai.OpenAI) -> None:
    (card,) = client.models.list()
    assert card.model_extra is not None
    assert "chat" in card.model_extra["capabilities"]
    assert card.model_extra["made_for"] == "completion"


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 11},
    {"temperature": 0.8, "seed": 12, "top_p": 0.9, "n": 3},
    {"temperature": 1.2, "seed": 2**63 + 5, "presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"temperature": 0, "logit_bias": {"10": 100}},
    {"temperature": 0.7, "seed": 3, "stop": ["return", "\n\n\n"]},
]
EXTENSIONS: list[dict[str, Any]] = [
    {"top_k": 7, "min_p": 0.02, "repetition_penalty": 1.1},
    {"min_tokens": 40, "ignore_eos": True, "priority": 3},
    {"bad_words": ["return", " x"]},
    {"allowed_token_ids": [10, 11, 12, 300]},
    {"truncate_prompt_tokens": 3},
    {"truncate_prompt_tokens": -1},
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("options", SAMPLED, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_sampling(
    client: openai.OpenAI, offline: LLM, options: dict[str, Any], stream: bool
) -> None:
    made: Any = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=40, stream=stream, **options
    )
    texts, ends = ["" for _ in range(options.get("n", 1))], {}
    for part in made if stream else [made]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
    seen = dict(options)
    if "logit_bias" in seen:
        seen["logit_bias"] = {int(token): bias for token, bias in seen["logit_bias"].items()}
    seen["stop"] = tuple(seen.get("stop", ()))
    expected = computed(offline, max_tokens=40, **seen).outputs
    assert texts == [choice.text for choice in expected]
    assert ends == {choice.index: choice.finish_reason for choice in expected}


def test_a_seed_decides_and_another_decides_otherwise(client: openai.OpenAI) -> None:
    def text(seed: int | None) -> str:
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=40, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    assert text(5) == text(5)
    assert len({text(5), text(6), text(None), text(None)}) == 4


def test_a_bias_bans_and_forces(client: openai.OpenAI, offline: LLM) -> None:
    (first,) = computed(offline, temperature=0.0, max_tokens=1).outputs
    token = first.token_ids[0]

    def tokens(bias: dict[str, int]) -> list[int]:
        # Not what the text is spelled with: a banned token's text may be written with others.
        answer = client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=5,
            temperature=0,
            logit_bias=bias,
            extra_body={"return_token_ids": True},
        )
        return cast("list[int]", (answer.choices[0].model_extra or {})["token_ids"])

    assert token not in tokens({str(token): -100})
    (forced,) = offline.tokenizer.encode("sort", False)
    assert tokens({str(forced): 100}) == [forced] * 5


@pytest.mark.parametrize("n", [1, 2])
def test_options_that_leave_no_token_are_the_requests_own_fault(
    client: openai.OpenAI, n: int
) -> None:
    with pytest.raises(openai.BadRequestError, match="no token to choose"):
        client.completions.create(
            model=MODEL, prompt=PROMPT, n=n, extra_body={"repetition_penalty": 5e-324}
        )


@pytest.mark.parametrize("extra", EXTENSIONS, ids=str)
def test_extensions(client: openai.OpenAI, offline: LLM, extra: dict[str, Any]) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=60, temperature=0.9, seed=8, extra_body=extra
    )
    options = {name: value for name, value in extra.items() if name != "priority"}
    (expected,) = computed(offline, max_tokens=60, temperature=0.9, seed=8, **options).outputs
    assert answer.choices[0].text == expected.text


LONG = "def quicksort(items):\n    pass\n\n\n" * 400


@pytest.mark.parametrize("length", [4, -1])
def test_prompts_that_are_cut(client: openai.OpenAI, offline: LLM, length: int) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    cut = {"truncate_prompt_tokens": length, "return_token_ids": True}
    prompts: Any = [LONG, PROMPT]
    answer: Any = client.completions.create(
        model=MODEL, prompt=prompts, echo=True, extra_body=cut, **options
    )
    kept = offline.tokenizer.encode(LONG)[-(length if length > 0 else 512 - 8) :]
    expected = computed(offline, LONG, truncate_prompt_tokens=length, **options)
    assert answer.choices[0].prompt_token_ids == expected.prompt_token_ids == kept
    assert answer.choices[0].text == offline.tokenizer.decode(kept) + expected.outputs[0].text
    assert answer.usage.prompt_tokens == len(kept) + len(answer.choices[1].prompt_token_ids)
    chat: Any = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": LONG}], extra_body=cut, **options
    )
    assert len(chat.prompt_token_ids) == len(kept)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids(client: openai.OpenAI, offline: LLM, stream: bool) -> None:
    options: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_tokens": 12, "n": 2}
    extra = {"return_token_ids": True}
    texts: Any = client.completions.create(
        model=MODEL, prompt=PROMPT, stream=stream, extra_body=extra, **options
    )
    chats: Any = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=stream, extra_body=extra, **options
    )
    expected = [computed(offline, **options), *offline.chat(MESSAGES, SamplingParams(**options))]
    for made, wanted in zip((texts, chats), expected, strict=True):
        parts = list(made) if stream else [made]
        holders = [h for part in parts for h in (part, *part.choices)]
        prompts = [ids for h in holders if (ids := getattr(h, "prompt_token_ids", None))]
        assert prompts[0] == wanted.prompt_token_ids
        for i, output in enumerate(wanted.outputs):
            choices = [c for part in parts for c in part.choices if c.index == i]
            ids = [t for c in choices for t in getattr(c, "token_ids", None) or ()]
            assert ids == output.token_ids


def test_a_message_that_is_continued(client: openai.OpenAI, offline: LLM) -> None:
    said: Any = [*MESSAGES, {"role": "assistant", "content": "def sort("}]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    extra = {"continue_final_message": True, "return_token_ids": True}
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=said, extra_body=extra, **options
    )
    params = SamplingParams(**options)
    (expected,) = offline.chat(
        said, params, continue_final_message=True, add_generation_prompt=False
    )
    assert answer.prompt_token_ids == expected.prompt_token_ids
    assert answer.choices[0].message.content == expected.outputs[0].text
    body = {"messages": said, "continue_final_message": True}
    root = str(client.base_url).removesuffix("/v1/")
    tokens = client.post(f"{root}/tokenize", cast_to=object, body=body)
    assert tokens["tokens"] == expected.prompt_token_ids  # type: ignore[index]


def test_log_probabilities_of_prompt_and_answer(client: openai.OpenAI, offline: LLM) -> None:
    expected = computed(offline, temperature=0.0, max_tokens=8, logprobs=3, prompt_logprobs=3)
    (made,) = expected.outputs
    assert expected.prompt_logprobs is not None
    assert made.logprobs is not None
    answer = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=8,
        temperature=0,
        logprobs=3,
        echo=True,
        extra_body={"prompt_logprobs": 3},
    )
    (choice,) = answer.choices
    assert choice.text == PROMPT + made.text
    assert choice.logprobs is not None
    seen = [None]
    seen += [next(iter(at.values())).logprob for at in expected.prompt_logprobs if at is not None]
    seen += [next(iter(at.values())).logprob for at in made.logprobs]
    assert choice.logprobs.token_logprobs == seen
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == "<|endoftext|>" + choice.text
    assert choice.logprobs.text_offset is not None
    for token, offset in zip(
        choice.logprobs.tokens[1:], choice.logprobs.text_offset[1:], strict=True
    ):
        assert choice.text.startswith(token, offset)
    extension = choice.model_dump()["prompt_logprobs"]
    assert extension[0] is None
    for seen_at, computed_at in zip(extension[1:], expected.prompt_logprobs[1:], strict=True):
        assert computed_at is not None
        assert seen_at == {
            str(token): msgspec.structs.asdict(entry) for token, entry in computed_at.items()
        }


def test_the_likeliest_of_several(client: openai.OpenAI, offline: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 4}
    answer = client.completions.create(model=MODEL, prompt=PROMPT, best_of=6, n=2, **options)
    made = computed(offline, n=6, logprobs=0, **options).outputs
    made.sort(key=lambda choice: -(choice.cumulative_logprob or 0.0) / choice.num_tokens)
    likeliest = [choice.text for choice in made[:2]]
    assert [choice.text for choice in answer.choices] == likeliest
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(choice.num_tokens for choice in made)


def test_a_salt_separates_caches(client: openai.OpenAI) -> None:
    prompt = "# " + "a line of a long comment\n# " * 12

    def cached(salt: str) -> int:
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        found = answer.usage.prompt_tokens_details.cached_tokens
        assert found is not None
        return found

    assert [cached("one") > 0, cached("two") > 0] == [False, False]
    assert cached("one") == cached("two") >= 64


def test_chats_at_once_streamed_and_not(client: openai.OpenAI, offline: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8}
    seeds = range(6)

    async def one(asked: openai.AsyncOpenAI, seed: int) -> tuple[str, list[float], int]:
        stream = await asked.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            seed=seed,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
            **options,
        )
        text, logprobs, count = "", [], 0
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                if choice.logprobs is not None:
                    logprobs += [entry.logprob for entry in choice.logprobs.content or []]
            if chunk.usage is not None:
                count = chunk.usage.completion_tokens
        return text, logprobs, count

    async def main() -> tuple[list[tuple[str, list[float], int]], list[Any]]:
        url = str(client.base_url)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as asked:
            streamed = [one(asked, seed) for seed in seeds]
            whole = [
                asked.chat.completions.create(
                    model=MODEL, messages=MESSAGES, seed=seed, logprobs=True, **options
                )
                for seed in seeds
            ]
            assert [model.id async for model in asked.models.list()] == [MODEL]
            return await asyncio.gather(*streamed), await asyncio.gather(*whole)

    streamed, whole = asyncio.run(main())
    for seed, (text, logprobs, count), answer in zip(seeds, streamed, whole, strict=True):
        params = SamplingParams(seed=seed, logprobs=2, **options)
        (expected,) = offline.chat(MESSAGES, params)[0].outputs
        assert expected.logprobs is not None
        seen = [next(iter(at.values())).logprob for at in expected.logprobs]
        assert (text, logprobs, count) == (expected.text, seen, expected.num_tokens)
        (choice,) = answer.choices
        assert choice.message.content == expected.text
        assert [entry.logprob for entry in choice.logprobs.content] == seen


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_the_chats_answer(client: openai.OpenAI, offline: LLM, stream: bool) -> None:
    made: Any = client.responses.create(
        model=MODEL,
        instructions=MESSAGES[0]["content"],
        input=MESSAGES[1]["content"],
        max_output_tokens=20,
        temperature=0.6,
        stream=stream,
        extra_body={"seed": 9, "cache_salt": "mine", "priority": 1},
    )
    if stream:
        text = ""
        for event in made:
            if event.type == "response.output_text.delta":
                text += event.delta
        made = event.response
        assert text == made.output_text
    params = SamplingParams(max_tokens=20, temperature=0.6, seed=9)
    assert made.output_text == offline.chat(MESSAGES, params)[0].outputs[0].text
    assert made.usage.output_tokens == 20
    assert made.status == "incomplete"
